"""From a row of an archive to its trace: traces are taken as they are, runs are redacted first."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from pydantic import ValidationError

from kp_langchain.calibration.agreement import task_hash
from kp_langchain.errors import KPError
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import TRACE_ID_PREFIX, ReasoningTrace
from kp_langchain.scoring.dimensions import TRACE_SOURCE
from kp_langchain.text import first_fault, read_json

if TYPE_CHECKING:
    from kp_langchain.archive.runs import RunReader
    from kp_langchain.archive.sources import Row
    from kp_langchain.config import Settings
    from kp_langchain.gate.run import Run


class ReadTrace(NamedTuple):
    """The trace of a row.

    Attributes:
        trace: The trace.
        run: The run that it was made of; None if the row held a trace.
        confidence_source: Where its confidence comes from, as `ScoreBreakdown` has it.
    """

    trace: ReasoningTrace
    run: Run | None = None
    confidence_source: str = TRACE_SOURCE

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


class NoReaderError(KPError):
    """No run can be read in this process, such as without LangChain."""


class TraceReader:
    """Reads the traces of rows, the same ones wherever that is done: no file knows of another.

    Args:
        settings: What is redacted, and the policies.
        read_at: The time of runs that state none, such as conversations.
    """

    def __init__(self, settings: Settings, read_at: datetime) -> None:
        self._settings = settings
        self._read_at = read_at
        self._runs: RunReader | None = None
        self._file: str | None = None

    def read(self, row: Row) -> ReadTrace:
        """Return the trace of a row.

        Raises:
            ValueError: The row holds none; the message says why.
            NoReaderError: It holds a run, of which this process can read none.
        """
        if row.file != self._file:
            self._runs, self._file = None, row.file
        content, place = row.content, row.place
        if isinstance(content, Unusable):
            raise ValueError(content.why)  # noqa: TRY004 - it is no fault of the caller
        if isinstance(content, RecordedRun):
            return self._read_run(content)
        try:
            trace = ReasoningTrace.model_validate_json(content)
        except ValidationError as error:
            if b'"messages"' in content or content[:1] == b"[":
                from kp_langchain.importing.json_runs import is_conversation, run_of_conversation

                value = read_json(content)
                if is_conversation(value):
                    return self._read_run(run_of_conversation(value, place))
            raise ValueError(first_fault(error)) from None
        if b"NaN" in content or b"Infinity" in content:  # pydantic reads them as null
            json.loads(content, parse_constant=_refuse_constant)
        return ReadTrace(self._completed(trace, place))

    def _completed(self, trace: ReasoningTrace, place: str) -> ReasoningTrace:
        """Return a trace with the id and time that it states, or the same ones at each reading."""
        if "id" not in trace.model_fields_set:
            trace = trace.model_copy(
                update={"id": f"{TRACE_ID_PREFIX}{uuid5(NAMESPACE_URL, place)}"}
            )
        metadata = trace.metadata
        if "created_at" not in metadata.model_fields_set:
            metadata = metadata.model_copy(update={"created_at": self._read_at})
            trace = trace.model_copy(update={"metadata": metadata})
        return trace

    def _read_run(self, recorded: RecordedRun) -> ReadTrace:
        if self._runs is None:
            try:
                # Here, because it loads LangChain, which takes longer than a thousand traces.
                from kp_langchain.archive.runs import RunReader

                self._runs = RunReader(self._settings, self._read_at)
            except Exception as error:
                raise NoReaderError(
                    f"a worker cannot read runs: {error}; the same command continues"
                ) from error
        return ReadTrace(*self._runs.read(recorded))


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is not valid in JSON")
