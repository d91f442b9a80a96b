"""One process of a user's journey: agents play recorded runs, and the default handler keeps them.

    python -m tests.benchmarks.quality.journey_process DOMAIN RUN_IDS

Store and `kp.toml` are those of the working folder and the environment. RUN_IDS is a file with the
ids of recorded runs as a JSON list. Prints, for each run that was recorded, its id in the file and
that of LangChain, as a JSON object a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from kp_langchain import KPCallbackHandler
from tests import recorded

_LONGEST_WAIT_S = 600.0


def main(domain: str, run_ids: Path) -> int:
    replay = recorded.replayer().replay
    wanted = json.loads(run_ids.read_text())
    by_id = {run["run_id"]: run for run in recorded.load() if run["run_id"] in set(wanted)}
    handler = KPCallbackHandler(domain)
    for recorded_id in wanted:
        run, run_id = by_id[recorded_id], uuid4()
        config = {"run_id": run_id, "metadata": {"kp_task": task_of(run)}}
        try:
            replay(run, [handler], "conversation", "raise", config)
        except Exception as error:  # an agent that fails leaves a run all the same
            print(f"{recorded_id}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
        # A real agent waits for its model so long that the last run is scored meanwhile.
        if not handler.flush(_LONGEST_WAIT_S):
            return 1
        print(json.dumps({"recorded": recorded_id, "run_id": str(run_id)}), flush=True)
    return 0


def task_of(run: dict[str, Any]) -> str:
    """The task of a recorded run; some were reworded between runs."""
    return (run.get("meta") or {}).get("task_id") or run["task"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
