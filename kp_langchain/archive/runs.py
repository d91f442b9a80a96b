"""Recorded runs as the traces that a handler would have made of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kp_langchain.gate.judge import outcome_of, trace_with_outcome
from kp_langchain.importing.importer import ReplayRecorder, replay
from kp_langchain.recording.assembly import assemble
from kp_langchain.recording.options import HandlerOptions
from kp_langchain.recording.redactor import KNOWN_SECRETS
from kp_langchain.recording.run_builder import build_run, keep_paused
from kp_langchain.schema import TRACE_ID_PREFIX, ReasoningTrace
from kp_langchain.scoring.scorer import Scorer

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.gate.run import Run
    from kp_langchain.importing.recorded_run import RecordedRun
    from kp_langchain.recording.run_record import RunRecord

_FATES = {
    "paused": "the run paused, and how it went on is no part of it",
    "cancelled": "the run was cancelled",
    "empty": "neither a model nor a tool was called",
    "": "neither a model nor a tool was called",
}


class RunReader:
    """Makes the redacted traces of runs, as a handler would have.

    The secrets that a run named are forgotten before the next one, and what runs recorded before
    they paused is not known to other readers: else a trace would depend on what else the process
    has read.

    Args:
        settings: What is redacted, and the policies.
        read_at: The time of runs that state none.
    """

    def __init__(self, settings: Settings, read_at: datetime) -> None:
        options = HandlerOptions(scorer=Scorer(embedder=None), store=None, send_scores_to=())
        # A run that paused stays in memory, for its resumption in the same part.
        own_settings = settings.model_copy(update={"paused_days": 0.0})
        _, _, self._context = assemble(options, own_settings, ReplayRecorder)
        own_scope = str(uuid4()), None
        self._context.paused_runs = replace(self._context.paused_runs, scope=own_scope)
        self._records: list[RunRecord] = []
        self._recorder = ReplayRecorder(own_settings, self._context.counters, self._records.append)
        self._read_at = read_at

    def read(self, recorded: RecordedRun) -> tuple[ReasoningTrace, Run, str]:
        """Return the trace of a recorded run, the run, and where its confidence comes from.

        Raises:
            ValueError: There is none; the message says why.
        """
        if recorded.is_incomplete:
            raise ValueError("a part of a run, whose root is not in the same file")
        KNOWN_SECRETS.clear()
        self._records.clear()
        try:
            replay(recorded, self._recorder)
        except BaseException:
            self._recorder.close()
            raise
        if self._recorder.open_count:
            self._recorder.close()
            raise ValueError("the run has no end")
        fate = self._recorder.fate
        if fate == "paused":
            for record in self._records:
                keep_paused(self._context, record)
        if fate != "delivered" or not self._records:
            raise ValueError(_FATES.get(fate, _FATES[""]))
        record = self._records[-1]
        if recorded.messages:
            record.started_at = self._read_at
        failed_before = self._failed
        built = build_run(self._context, record)
        if built is None:
            has_failed = self._failed > failed_before
            raise ValueError("the run cannot be recorded" if has_failed else _FATES[""])
        run = built[0]
        if run.withheld:
            raise ValueError(f"withheld: {run.withheld}")
        outcome = outcome_of(run, [] if run.reported is None else [run.reported], None)
        trace = trace_with_outcome(run.trace, outcome)
        # The same whenever the run is read again.
        trace = trace.model_copy(update={"id": f"{TRACE_ID_PREFIX}{run.run_id}"})
        return trace, run, outcome.source

    @property
    def _failed(self) -> int:
        counts: dict[str, Any] = self._context.counters.counts()
        return int(counts.get("failed", 0))
