"""From a row of an archive to its trace: traces are taken as they are, runs are redacted first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from kp_langchain.calibration.agreement import task_hash
from kp_langchain.gate.judge import outcome_of, trace_with_outcome
from kp_langchain.importing.importer import ReplayRecorder, replay
from kp_langchain.importing.json_runs import is_conversation, run_of_conversation
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.recording.assembly import assemble
from kp_langchain.recording.options import HandlerOptions
from kp_langchain.recording.redactor import KNOWN_SECRETS
from kp_langchain.recording.run_builder import build_run, keep_paused
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import TRACE_ID_PREFIX, ReasoningTrace
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.text import first_fault, read_json

if TYPE_CHECKING:
    from kp_langchain.archive.sources import Content, Row
    from kp_langchain.config import Settings
    from kp_langchain.gate.run import Run
    from kp_langchain.recording.run_record import RunRecord

_FATES = {
    "paused": "the run paused, and how it went on is no part of it",
    "cancelled": "the run was cancelled",
    "empty": "neither a model nor a tool was called",
    "": "neither a model nor a tool was called",
}


class ReadTrace(NamedTuple):
    """The trace of a row.

    Attributes:
        trace: The trace.
        run: The run that it was made of; None if the row held a trace.
    """

    trace: ReasoningTrace
    run: Run | None = None

    @property
    def task(self) -> str | None:
        """What is equal for runs of one task, in their namespace; None if it is not known."""
        if self.run is not None:
            task, namespace = self.run.task, (self.run.keys or RunKeys()).namespace
        else:
            task = task_hash(self.trace.task.objective)
            namespace = (self.trace.model_extra or {}).get("kp_namespace")
        return None if task is None else f"{task} {namespace or ''}"

    @property
    def conversations(self) -> list[str]:
        """The thread and the session of the run, if known."""
        keys = None if self.run is None else self.run.keys
        return [] if keys is None else [one for one in (keys.thread, keys.session) if one]


class TraceReader:
    """Reads the traces of one part of an archive, the same ones wherever that is done.

    Args:
        settings: What is redacted, and the policies.
        read_at: The time of runs that state none, such as conversations.
    """

    def __init__(self, settings: Settings, read_at: datetime) -> None:
        self._settings = settings
        self._read_at = read_at
        self._runs: _RunReader | None = None  # made when it is needed, for it loads LangChain

    def read(self, row: Row) -> ReadTrace:
        """Return the trace of a row.

        Raises:
            ValueError: The row holds none; the message says why.
        """
        return self._read(row.content, row.place)

    def _read(self, content: Content, place: str) -> ReadTrace:
        if isinstance(content, Unusable):
            raise ValueError(content.why)  # noqa: TRY004 - it is no fault of the caller
        if isinstance(content, RecordedRun):
            if self._runs is None:
                self._runs = _RunReader(self._settings, self._read_at)
            return self._runs.read(content)
        try:
            if isinstance(content, Mapping):
                return ReadTrace(ReasoningTrace.model_validate(content))
            trace = ReasoningTrace.model_validate_json(content)
        except ValidationError as error:
            if isinstance(content, bytes) and (b'"messages"' in content or content[:1] == b"["):
                value = read_json(content)
                if is_conversation(value):
                    return self._read(run_of_conversation(value, place), place)
            raise ValueError(first_fault(error)) from None
        if b"NaN" in content or b"Infinity" in content:  # pydantic reads them as null
            json.loads(content, parse_constant=_refuse_constant)
        return ReadTrace(trace)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is not valid in JSON")


class _RunReader:
    """Makes the redacted traces of runs, as a handler would have.

    The secrets that a run named are forgotten before the next one: else what is redacted of a run
    would depend on which others the same process has read.
    """

    def __init__(self, settings: Settings, read_at: datetime) -> None:
        options = HandlerOptions(scorer=Scorer(embedder=None), store=None, send_scores_to=())
        # A run that paused stays in memory, for its resumption in the same part.
        own_settings = settings.model_copy(update={"paused_days": 0.0})
        _, _, self._context = assemble(options, own_settings, ReplayRecorder)
        self._records: list[RunRecord] = []
        self._recorder = ReplayRecorder(own_settings, self._context.counters, self._records.append)
        self._read_at = read_at

    def read(self, recorded: RecordedRun) -> ReadTrace:
        """Return the trace of a run.

        Raises:
            ValueError: There is none; the message says why.
        """
        if recorded.is_incomplete:
            raise ValueError("a part of a run, whose root is not in the same file")
        KNOWN_SECRETS.clear()
        self._records.clear()
        replay(recorded, self._recorder)
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
        return ReadTrace(trace.model_copy(update={"id": f"{TRACE_ID_PREFIX}{run.run_id}"}), run)

    @property
    def _failed(self) -> int:
        counts: dict[str, Any] = self._context.counters.counts()
        return int(counts.get("failed", 0))
