"""The formats that can be imported, and which of them a value is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from kp_langchain.importing.genai import GENAI
from kp_langchain.importing.langsmith_runs import LangSmithRuns, runs_of_value
from kp_langchain.importing.message_lines import is_conversation, run_of_line
from kp_langchain.importing.openinference import OPENINFERENCE
from kp_langchain.importing.otlp_json import is_otlp
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.importing.span_calls import SpanRuns

Format = Literal["openinference", "genai", "langsmith", "messages"]
FORMATS: tuple[Format, ...] = ("openinference", "genai", "langsmith", "messages")

_CONVENTIONS: Final = {"openinference": OPENINFERENCE, "genai": GENAI}


class FileReader:
    """Reads the runs of some files, given the JSON values in them.

    Conversations are yielded as they come. The parts of other runs may be in any order, so all of
    them are collected, and `conclude` yields the runs.

    Args:
        format: The only format to read; None to tell it from each value.
    """

    def __init__(self, format: Format | None = None) -> None:  # noqa: A002 - the option's name
        self._format = format
        self._langsmith = LangSmithRuns()
        self._spans = SpanRuns(
            tuple(one for name, one in _CONVENTIONS.items() if format in (None, name))
        )

    def add(self, value: Any, place: str) -> Iterator[RecordedRun | Unusable]:
        """Add one value; yield the runs that are complete with it, and what cannot be used.

        Args:
            value: What a line holds, or a whole document.
            place: Where it stands.
        """
        chosen = self._format
        if is_otlp(value) and self._spans.conventions:
            yield from self._spans.add(value, place)
        elif chosen in (None, "langsmith") and (runs := runs_of_value(value)) is not None:
            for run in runs:
                yield from self._langsmith.add(run, place)
        elif chosen in (None, "messages") and is_conversation(value):
            yield self._conversation(value, place)
        elif isinstance(value, list) and value and all(map(_may_hold_runs, value)):
            for item in value:
                yield from self.add(item, place)
        else:
            any_format = "neither spans in OTLP JSON, LangSmith runs, nor messages"
            yield Unusable(place, f"not in the format {chosen}" if chosen else any_format)

    def _conversation(self, value: Any, place: str) -> RecordedRun | Unusable:
        try:
            return run_of_line(value, place)
        except ValueError as error:
            return Unusable(place, str(error))

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the runs whose parts were collected."""
        yield from self._langsmith.conclude()
        yield from self._spans.conclude()


def _may_hold_runs(value: object) -> bool:
    return is_otlp(value) or (isinstance(value, dict) and is_conversation(value))
