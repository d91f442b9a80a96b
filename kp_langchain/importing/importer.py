"""`Importer`: recorded runs on the way that a live run takes, into the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kp_langchain.errors import StoreError
from kp_langchain.importing.replay import ReplayRecorder, replay
from kp_langchain.recording.assembly import assemble
from kp_langchain.recording.options import HandlerOptions

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.config import Settings
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.importing.recorded_run import RecordedRun
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore

_RUNS_AT_ONCE = 50

Fate = Literal[
    "imported", "known", "paused", "cancelled", "unfinished", "incomplete", "empty", "failed"
]


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a recorded run.

    Attributes:
        run: The run.
        fate: `imported`: it is in the store now. `known`: it was there before. `paused`: the file
            does not show how it went on, or shows that in another run, to which it belongs.
            `cancelled`, `unfinished`: it did not come to an end. `incomplete`: it is a part of a
            run whose root is not in the files. `empty`: neither a model nor a tool was called.
            `failed`: it cannot be recorded or scored; a warning says why.
        scored: The scored run, if it was imported.
    """

    run: RecordedRun
    fate: Fate
    scored: ScoredTrace | None = None


class Importer:
    """Records, redacts, scores, gates and stores runs as a handler would have.

    Args:
        store: The store.
        settings: The settings.
        domain: The domain of runs that name none.
        agent_id: The agent that ran; by default that of the settings.
        scorer: The scorer; by default that of the store.

    Raises:
        ConfigError: An argument or setting cannot be used.
    """

    def __init__(
        self,
        store: TraceStore,
        settings: Settings,
        *,
        domain: str = "default",
        agent_id: str | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        options = HandlerOptions(
            domain=domain,
            scorer=scorer,
            store=store,
            agent_id=agent_id,
            on_scored=self._receive,
            send_scores_to=(),
        )
        options.check()
        # What a paused run recorded stays in memory: its resumption is in the same file, or nowhere
        # that a later import would find again.
        memory_only = settings.model_copy(update={"paused_days": 0.0})
        recorder, self._intake = assemble(options, memory_only, ReplayRecorder)
        if not isinstance(recorder, ReplayRecorder):
            raise TypeError("the recorder does not replay")
        self._store, self._recorder = store, recorder
        self._scored: dict[UUID, ScoredTrace] = {}
        self._group_size = min(_RUNS_AT_ONCE, settings.max_queue)
        self._is_ready = False

    def run(self, runs: Iterable[RecordedRun]) -> Iterator[Imported]:
        """Import runs, and yield what became of each when it is stored.

        Args:
            runs: The runs, in the order in which they began.

        Raises:
            StoreError: The store cannot be read or written.
        """
        if not self._is_ready:
            self._is_ready = True
            self._wait()  # what an interrupted import left unscored is scored now, and known then
        group: list[tuple[RecordedRun, Fate]] = []
        seen: set[UUID] = set()
        for run in runs:
            fate: Fate = "known"
            if run.run_id not in seen and not self._is_known(run):
                seen.add(run.run_id)
                fate = self._record(run)
            group.append((run, fate))
            if len(group) >= self._group_size:
                yield from self._conclude(group)
                group = []
        yield from self._conclude(group)

    def close(self) -> None:
        """Forget the runs that paused."""
        self._recorder.close()

    def _is_known(self, run: RecordedRun) -> bool:
        return self._store.journal.has_run(run.run_id) or any(
            external.span_id is not None and self._store.external_traces.has(tool, external)
            for tool, external in run.external_traces.items()
        )

    def _record(self, run: RecordedRun) -> Fate:
        if run.is_incomplete:
            return "incomplete"
        self._intake.prepare()
        replay(run, self._recorder)
        if self._recorder.open_count:
            self._recorder.abandon_open()
            return "unfinished"
        fate = self._recorder.fate
        return "imported" if fate == "delivered" else fate or "empty"

    def _conclude(self, group: list[tuple[RecordedRun, Fate]]) -> Iterator[Imported]:
        failed_before = self._recorder.counters.counts().get("failed", 0)
        self._wait()
        has_failed = self._recorder.counters.counts().get("failed", 0) > failed_before
        for run, fate in group:
            scored = self._scored.pop(run.run_id, None)
            if fate == "imported" and scored is None:
                fate = "failed" if has_failed else "empty"
            yield Imported(run, fate, scored)

    def _wait(self) -> None:
        if not self._intake.wait():
            raise StoreError(f"the runs cannot be written into {self._store.location}")

    def _receive(self, scored: ScoredTrace) -> None:
        self._scored[scored.run_id] = scored
