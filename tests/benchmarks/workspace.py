"""A user's folder with runs: `import`, `label` and `calibrate` as commands, and labelled runs.

A file of labelled runs holds one run a line, as JSON: `messages`, `success` (true, false, or null
where it is not known), `source`, and perhaps `domain` and `task`; it may be compressed (`.gz`).
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kp_langchain import TraceStore
from tests import programs
from tests.commands import PROGRAM
from tests.programs import Done
from tests.recorded import DOMAINS, FOLDER

RECORDED = FOLDER / "runs.jsonl.gz"
REPEATED = FOLDER / "runs2.jsonl.gz"
"""Recorded runs of many models on the same tasks."""
LABELLED = 150
"""So many runs get a verdict, or half of a source that has fewer than twice as many."""
_STORE = "runs.db"
_LONGEST_S = 7200.0


class Run(NamedTuple):
    """A run of which it is known whether it succeeded.

    Attributes:
        id: Its id, a UUID.
        source: Where it comes from; runs are compared with others of their source only.
        domain: Its domain.
        task: Runs with an equal task are repeats of one task.
        success: The truth.
        row: The line of the file.
        thread: The thread that it is a retry in; None if it is none.
    """

    id: str
    source: str
    domain: str
    task: str
    success: bool
    row: dict[str, Any]
    thread: str | None = None


def read_runs(files: Iterable[Path], every: int = 1) -> dict[str, list[Run]]:
    """Return the labelled runs of files by source, the largest first; report other lines.

    Args:
        files: JSON lines.
        every: Take every Nth run of a source.
    """
    by_source: defaultdict[str, list[Run]] = defaultdict(list)
    for file in files:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    run = _run(json.loads(line), f"{file.name}:{number}")
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    reason = f"{type(error).__name__}: {error}"[:200]
                    print(f"{file}:{number}: {reason}", file=sys.stderr)
                    continue
                if run is not None:
                    by_source[run.source].append(run)
    found = {source: runs[::every] for source, runs in by_source.items()}
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _run(row: dict[str, Any], place: str) -> Run | None:
    """Return the run of a line; None if nothing says whether it succeeded."""
    success, source = row["success"], row["source"]
    if success is None:
        return None
    if not isinstance(success, bool) or not isinstance(source, str) or not source.strip():
        raise ValueError("success must be true, false or null, and source a text")
    if not isinstance(row["messages"], list) or not row["messages"]:
        raise ValueError("messages must be a list of messages")
    # Some tasks of the recorded runs were reworded between the runs.
    task = (row.get("meta") or {}).get("task_id") or row.get("task") or row["messages"][0]
    task = " ".join(str(task).casefold().split())
    domain = row.get("domain") or "default"
    return Run(
        str(uuid.uuid5(uuid.NAMESPACE_URL, str(row.get("run_id") or place))),
        source,
        DOMAINS.get(domain, domain),
        task,
        success,
        row,
        # Its agents try a task again after a failure, and remember what they tried.
        f"{row['run_id'].split('/')[1]} {task}" if source == "reflexion-hotpotqa" else None,
    )


def most_common_domain(runs: Sequence[Run]) -> str:
    return Counter(run.domain for run in runs).most_common(1)[0][0]


def has_both_outcomes(runs: Sequence[Run], least: int) -> bool:
    """Return whether at least so many runs succeeded, and so many failed."""
    successes = sum(run.success for run in runs)
    return min(successes, len(runs) - successes) >= least


def split_by_task(runs: Sequence[Run], seed: int) -> tuple[list[Run], list[Run]]:
    """Return the runs that get a verdict, and those that come after; they share no task.

    Args:
        runs: The runs of a source.
        seed: Decides which tasks are labelled, and the order of runs within both parts.
    """
    by_task: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(run)
    drawn = random.Random(seed)
    tasks = sorted(by_task)
    drawn.shuffle(tasks)
    labelled: list[Run] = []
    while tasks and len(labelled) < min(LABELLED, len(runs) // 2):
        labelled += by_task[tasks.pop()]
    further = [run for task in tasks for run in by_task[task]]
    drawn.shuffle(labelled)
    drawn.shuffle(further)
    return labelled, further


class KnownEmbeddings:
    """An embedder that embeds no text twice, so that another order of runs costs nothing.

    Args:
        embedder: What embeds.
    """

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.model = getattr(embedder, "model", type(embedder).__name__)
        self.baseline = getattr(embedder, "baseline", 0.0)
        self._vectors: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        for text in dict.fromkeys(texts):
            if text not in self._vectors:
                (self._vectors[text],) = self._embedder.embed([text])
        return np.stack([self._vectors[text] for text in texts])


class Workspace:
    """The folder that a user works in, with store and `kp.toml`.

    Args:
        folder: The folder; it is made. From then on, this process has no settings of its own.
        domain: The domain of all runs.
        settings: Environment variables of its commands.
    """

    def __init__(self, folder: Path, domain: str, **settings: str) -> None:
        for name in [name for name in os.environ if name.startswith("KP_")]:
            del os.environ[name]
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._domain = domain
        self._settings = settings

    def record(self, runs: Iterable[Run]) -> None:
        """Import runs in a process of their own, without what is known of their success."""
        lines = []
        for run in runs:
            metadata = {"kp_task": run.task}
            if run.thread is not None:
                metadata["thread_id"] = run.thread
            lines.append({"id": run.id, "messages": run.row["messages"], "metadata": metadata})
        # A line that is no run is reported and skipped.
        done = self._command("import", self._written("runs.jsonl", lines), "--domain", self._domain)
        if done.returncode and "Imported" not in done.stdout + done.stderr:
            raise RuntimeError(f"import failed: {done.stderr}")

    def label(self, runs: Iterable[Run]) -> None:
        """Record the truth about runs."""
        lines = [{"run_id": run.id, "success": run.success} for run in runs]
        done = self._command("label", "import", self._written("verdicts.jsonl", lines))
        if done.returncode > 1:  # 1: of a run that could not be imported
            raise RuntimeError(f"label failed: {done.stderr}")

    def calibrate(self, *options: str) -> dict[str, Any]:
        """Calibrate; return what the command says."""
        done = self._command("calibrate", "--domain", self._domain, "--json", *options)
        if not done.stdout.strip():
            raise RuntimeError(f"calibrate failed: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def store(self) -> TraceStore:
        """Return its store."""
        return TraceStore(self.folder / _STORE)

    def _written(self, name: str, lines: Iterable[object]) -> str:
        (self.folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return name

    def _command(self, *words: str) -> Done:
        home = str(self.folder)
        settings = {
            "XDG_DATA_HOME": home,
            "XDG_CONFIG_HOME": home,
            "KP_DATABASE_URL": _STORE,
            "HF_HUB_OFFLINE": "1",
            **self._settings,
        }
        return programs.run(
            "-c", PROGRAM, *words, cwd=self.folder, timeout_s=_LONGEST_S, **settings
        )


WITHOUT_MODEL = {"KP_EMBEDDING_MODEL": "/no/such/model"}
"""Settings of a workspace whose runs are not embedded: novelty is 0.5."""
KEEPS_ALL = {"KP_DEFAULTS": json.dumps({"threshold": 0.0, "twin_similarity": 1.0})}
"""Settings of a workspace that keeps every run."""
