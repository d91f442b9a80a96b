"""What a user gets: verdicts on some runs, `calibrate --write`, and then the runs that follow.

    pip install -e '.[bench]'
    python -m tests.benchmarks.quality.journey [--sources NAME ...] [--draws N] [--out FOLDER]

Needs the recorded runs beside the checkout. Of each source with enough of them, several times:

1. A process plays 150 runs of some tasks, or half of the source's, through real agent loops with a
   handler that has no argument but the domain. Runs name their task (`kp_task`).
2. `kp-langchain label --from FILE` records the truth about these runs.
3. `kp-langchain calibrate --domain DOMAIN --write`.
4. A second process plays up to 150 runs of other tasks, and a third one up to 150 more.
5. What the gate kept of these later runs is read from the store.

Beside it, the same later runs meet the default gate: without 2 and 3. Prints tables in Markdown and
writes `journey.json` into the folder. A run takes up to 100 ms, nearly all for its embedding.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kp_langchain import TraceStore
from kp_langchain.embedding.embedder_protocol import resolve_embedder
from tests import recorded
from tests.benchmarks.quality.draws import LABELLED, split_by_task
from tests.benchmarks.quality.journey_process import task_of
from tests.benchmarks.quality.journey_tables import tables
from tests.benchmarks.quality.runs import Run
from tests.benchmarks.quality.scores import KnownEmbeddings
from tests.benchmarks.quality.selection import TWINS_FROM
from tests.benchmarks.quality.tables import renewed

ROOT = Path(__file__).resolve().parents[3]
STORE = "runs.db"
PROCESSES = 2  # after the verdicts
ENOUGH = 30  # runs of either kind

Row = dict[str, Any]
Tell = Callable[[str], object]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.quality.journey",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sources", nargs="+", metavar="NAME",
                        help="by default all with enough runs")  # fmt: skip
    parser.add_argument("--draws", type=int, default=3, metavar="N",
                        help="how often tasks are drawn (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path(".benchmarks"), metavar="FOLDER",
                        help="where to write (default: %(default)s)")  # fmt: skip
    parser.add_argument("--into", type=Path, metavar="FILE",
                        help="renew tables of the same heads in a Markdown file")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    """Play the journeys, print and write; return 1 where there are no recorded runs."""
    chosen = options()
    if not recorded.present():
        print(f"no recorded runs in {recorded.FOLDER}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {line}", file=sys.stderr, flush=True)

    by_source = _sources(chosen.sources)
    journeys = []
    for name, rows in by_source.items():
        for seed in range(chosen.draws):
            tell(f"{name}: draw {seed + 1} of {chosen.draws}")
            with TemporaryDirectory(prefix="kp-journey-") as folder:
                journeys += play(name, rows, seed, Path(folder), tell)
    report = {"journeys": journeys, "took_s": round(time.monotonic() - began_s)}
    chosen.out.mkdir(parents=True, exist_ok=True)
    written = chosen.out / "journey.json"
    written.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    printed = list(tables(report))
    print("\n".join(printed))
    if chosen.into is not None:
        text = chosen.into.read_text(encoding="utf-8")
        chosen.into.write_text(renewed(text, printed), encoding="utf-8")
    tell(str(written))
    return 0


def _sources(names: Sequence[str] | None) -> dict[str, list[Row]]:
    by_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in recorded.load():
        if row["success"] is not None and (names is None or row["source"] in names):
            by_source[row["source"]].append(row)
    counts = {name: Counter(row["success"] for row in rows) for name, rows in by_source.items()}
    return {
        name: rows
        for name, rows in by_source.items()
        if min(counts[name][True], counts[name][False]) >= ENOUGH
    }


@dataclass
class Household:
    """The folder that a user works in, with store and `kp.toml`.

    Args:
        folder: The folder.
        domain: The domain of all runs.
        truth: The recorded run of each id of LangChain's, as far as it was played.
    """

    folder: Path
    domain: str
    truth: dict[str, Row] = field(default_factory=dict)

    def play(self, rows: Sequence[Row]) -> None:
        """Play runs in a process of their own.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        wanted = self.folder / "wanted.json"
        wanted.write_text(json.dumps([row["run_id"] for row in rows]))
        module = "tests.benchmarks.quality.journey_process"
        done = self._python("-m", module, self.domain, str(wanted))
        done.check_returncode()
        by_id = {row["run_id"]: row for row in rows}
        for line in done.stdout.splitlines():
            ids = json.loads(line)
            self.truth[ids["run_id"]] = by_id[ids["recorded"]]

    def label(self) -> None:
        """Record the truth about all runs that were played.

        Raises:
            subprocess.CalledProcessError: A verdict was not used.
        """
        file = self.folder / "verdicts.jsonl"
        lines = (
            json.dumps({"run_id": run_id, "success": row["success"]})
            for run_id, row in self.truth.items()
        )
        file.write_text("\n".join(lines) + "\n")
        self._command("label", "--from", str(file)).check_returncode()

    def calibrate(self) -> dict[str, Any]:
        """Calibrate with `--write`; return what it says of the domain.

        Raises:
            RuntimeError: It says nothing.
        """
        done = self._command("calibrate", "--domain", self.domain, "--write", "--json")
        if not done.stdout.strip():
            raise RuntimeError(f"calibrate failed: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def copy(self, folder: Path) -> Household:
        """The same, in another folder."""
        shutil.copytree(self.folder, folder)
        return Household(folder, self.domain, dict(self.truth))

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "kp_langchain", *words)

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        theirs = {key: value for key, value in os.environ.items() if not key.startswith("KP_")}
        environment = theirs | {
            "PYTHONPATH": str(ROOT),
            "KP_DATABASE_URL": STORE,
            "KP_EXIT_TIMEOUT_S": "600",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "data"),
        }
        return subprocess.run(
            [sys.executable, "-W", "ignore", *words],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def play(
    name: str, rows: Sequence[Row], seed: int, folder: Path, tell: Tell
) -> list[dict[str, Any]]:
    """Play one journey, with the default gate and with that of `calibrate --write`.

    Args:
        name: The source.
        rows: Its recorded runs.
        seed: Decides which tasks get verdicts.
        folder: An empty folder.
        tell: Called with a line for whoever waits.

    Returns:
        What either gate kept of the later runs, the default one first.
    """
    labelled, later = split_by_task(rows, task_of, seed)
    later = later[: PROCESSES * LABELLED]
    domain = Counter(recorded.DOMAINS.get(row["domain"], row["domain"]) for row in rows)
    user = Household(folder / "calibrated", domain.most_common(1)[0][0])
    user.folder.mkdir()
    user.play(labelled)
    other = user.copy(folder / "default")
    user.label()
    result = user.calibrate()
    half = (len(later) + 1) // PROCESSES
    for household in (other, user):
        tell(f"{name}: {len(later)} later runs, {household.folder.name} gate")
        household.play(later[:half])
        household.play(later[half:])
    about = {"source": name, "draw": seed, "labelled": len(labelled), "later": len(later)}
    tasks = sorted({task_of(row) for row in rows})
    return [
        {**about, "calibrated": calibrated, "model": model, **_kept(household, later, tasks)}
        for calibrated, model, household in (
            (False, "none", other),
            (True, _model_word(result), user),
        )
    ]


def _model_word(result: dict[str, Any]) -> str:
    if result["refusal"] is not None:
        return "refused"
    return "provisional" if result["provisional"] else "accepted"


def _kept(household: Household, later: Sequence[Row], tasks: Sequence[str]) -> dict[str, Any]:
    """What the gate kept of the later runs; tasks are numbered among all of the source."""
    numbers = {task: number for number, task in enumerate(tasks)}
    wanted = {row["run_id"] for row in later}
    runs, gates, traces = [], Counter[str](), []
    with TraceStore(household.folder / STORE) as store:
        for run_id, row in household.truth.items():
            if row["run_id"] not in wanted:
                continue
            stored = store.get(run_id)
            if stored is None:
                continue
            is_kept = stored.decision == "contributed"
            gates[stored.gate] += 1
            runs.append([numbers[task_of(row)], row["success"], is_kept])
            if is_kept and (trace := stored.trace) is not None:
                traces.append(Run(row["source"], task_of(row), row["success"], trace))
    return {
        "gate": gates.most_common(1)[0][0],
        "tasks": len(tasks),
        "runs": runs,
        "twins": _twins(traces),
    }


def _twins(runs: Sequence[Run]) -> float:
    """The share of runs that have a twin among those before them."""
    embedder = resolve_embedder("auto")
    if embedder is None or not runs:
        return 0.0
    alike = KnownEmbeddings(embedder, runs).similarities(runs) >= TWINS_FROM
    return sum(bool(alike[at, :at].any()) for at in range(len(runs))) / len(runs)


if __name__ == "__main__":
    sys.exit(main())
