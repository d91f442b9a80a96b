"""Redacts what was recorded of a run; what cannot be redacted is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.messages import clean, clip, plain, text_size
from kp_langchain.recording.run_record import MARGIN_CHARS
from kp_langchain.redaction import redact

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters
    from kp_langchain.redaction.custom_rules import Rules

UNREDACTABLE = "[REDACTED:failed]"
_NOTHING_LEFT = "(removed)"  # a tool has a name


def cleaned(value: Any) -> Any:
    """A copy of JSON-like `value` without text that UTF-8 or a database cannot hold."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return value


class Redactor:
    """Redacts one run and cuts its texts to their bound; what cannot be redacted is dropped.

    The recorder leaves a margin beyond the bound on both sides of a cut, so that a secret which
    crosses it is seen whole. The margin is always taken off: what redaction makes shorter may fit
    the bound with a piece of a secret beside the cut.
    """

    def __init__(
        self,
        counters: Counters,
        bound: int,
        *,
        rules: Rules | None = None,
        hook: Callable[[str], str] | None = None,
    ) -> None:
        self._counters = counters
        self._bound = bound
        self._rules = rules
        self._hook = hook
        # What an agent says comes again: names of tools with each call, its last words as answer.
        self._texts: dict[tuple[str, str], str] = {}
        self.failed = False
        self._is_out_of_order = False

    def fail(self, how: str) -> None:
        """Drop every text from now on: the caller's function cannot be relied on."""
        self._is_out_of_order = True
        self._texts.clear()
        self._fail(how)

    def _redact(self, value: Any, level: str) -> Any:
        if self._is_out_of_order:
            return UNREDACTABLE
        try:
            redaction = redact(cleaned(value), level=level, rules=self._rules, redactor=self._hook)
        except BaseException as error:  # noqa: BLE001 - the payload is dropped, not kept
            self._fail(describe_error(error))
            return UNREDACTABLE
        if redaction.counts.get("failed"):  # it dropped the parts that it could not redact
            self._fail("parts dropped")
        return redaction.value

    def _fail(self, how: str) -> None:
        self.failed = True
        self._counters.add("redaction_errors")
        warn_once(
            f"redaction:{how}",
            "redaction failed (%s); what could not be redacted is dropped, and such runs do not "
            "pass",
            how,
        )

    def text(self, value: str, level: str) -> str:
        """Redact a text."""
        known = self._texts.get((value, level))
        if known is None:
            margin = MARGIN_CHARS if len(value) > self._bound else 0
            known = clip(str(self._redact(value, level)), self._bound, margin=margin)
            if self._hook is None:
                self._texts[value, level] = known
        return known

    def leaves(self, value: str) -> bool:
        """Return whether nothing of a text is redacted at the strictest level."""
        return bool(self._redact(value, "aggregated") == value)

    def step(self, step: Mapping[str, Any], level: str) -> dict[str, Any]:
        """Redact a step in wire form."""
        out = dict(step)
        if "content" in out:
            out["content"] = self.text(out["content"], level)
        if "tool" in out:  # its keys are ours, its values the run's
            out["tool"] = {
                key: _without_cuts(self.text(text, level)) or _NOTHING_LEFT
                for key, text in out["tool"].items()
            }
        if "input" in out:
            out["input"] = self.mapping(out["input"], level)
        return out

    def mapping(self, value: Mapping[str, Any], level: str) -> Any:
        """Redact JSON-like values by name."""
        whole = self._redact(value, level)
        whole = whole if isinstance(whole, dict) else {"input": whole}
        was_cut = text_size(value) > self._bound
        return plain(_without_cuts(whole, texts=was_cut), self._bound)


def _without_cuts(value: Any, *, texts: bool = True) -> Any:
    """Take off what stands beside a cut: in keys, which are cut by themselves, and in texts."""
    if isinstance(value, str):
        return clip(value, len(value), margin=MARGIN_CHARS) if texts else value
    if isinstance(value, dict):
        return {_without_cuts(key): _without_cuts(item, texts=texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_cuts(item, texts=texts) for item in value]
    return value
