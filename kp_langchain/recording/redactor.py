"""Redacts what is recorded of a run, and drops what cannot be redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.bounds import MARGIN_CHARS
from kp_langchain.recording.safe_reads import clean, clip
from kp_langchain.recording.values import plain, text_size
from kp_langchain.redaction import open_session

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.human import Exchange
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.redaction.repeated import Secrets

UNREDACTABLE = "[REDACTED:failed]"
_REMOVED = "(removed)"  # in place of an empty text if the wire form requires a text


def clean_json(value: Any) -> Any:
    """Return a copy of a JSON-like value with every text in it as `clean` returns it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value


class Redactor:
    """Redacts one run and cuts its texts to their bound; what cannot be redacted is dropped.

    The recorder keeps a margin beyond the bound on both sides of a cut, so that redaction sees a
    secret that crosses the cut whole. The margin is always removed: redaction may shorten a text
    so much that it fits the bound with a fragment of a secret beside the cut.

    Args:
        counters: Counts failed redactions as `redaction_errors`.
        max_chars: Characters to keep of each text.
        rules: What is redacted in addition to what always is.
        hook: The user's function, which redacts further. It may raise.

    Attributes:
        has_failed: Whether some part of the run could not be redacted.
    """

    def __init__(
        self,
        counters: Counters,
        max_chars: int,
        *,
        rules: Rules | None = None,
        hook: Callable[[str], str] | None = None,
    ) -> None:
        self._counters = counters
        self._max_chars = max_chars
        self._hook = hook
        self._session = open_session(rules=rules, redactor=hook)
        # Texts recur: the name of a tool with each call, the last thought as the answer.
        self._redacted_texts: dict[tuple[str, str, bool], str] = {}
        self.has_failed = False
        self._is_out_of_order = False

    @property
    def secrets(self) -> Secrets:
        """What the run has named; add to it what is known from elsewhere."""
        return self._session.secrets

    def learn(self, parts: Iterable[Any], level: str, exchanges: Iterable[Exchange] = ()) -> None:
        """Take note of the secrets that a run names, so that they go from all of it.

        Args:
            parts: All that will be redacted, as it will be.
            level: The privacy level at which it will be.
            exchanges: What a human was asked and answered.
        """
        self._redacted_texts.clear()
        try:
            for question, answer, is_step in exchanges:
                self._session.learn_answer(clean(question), clean(answer), is_step=is_step)
            self._session.learn([clean_json(part) for part in parts if part], level)
        except BaseException as error:  # noqa: BLE001 - what was not learned would be left
            self.fail(describe_error(error))
        if self.secrets.is_full:
            warn_once(
                "secrets",
                "a run names more secrets than are looked for in all of it: %d; the others are "
                "redacted only where they are named",
                len(self.secrets.named),
            )

    def fail(self, reason: str) -> None:
        """Drop every text from now on, because something failed that all of them depend on.

        Args:
            reason: For the warning; must not contain text of the run.
        """
        self._is_out_of_order = True
        self._redacted_texts.clear()
        self._count_failure(reason)

    def _redact(self, value: Any, level: str, *, is_name: bool = False) -> Any:
        if self._is_out_of_order:
            return UNREDACTABLE
        try:
            clean_value, counts = self._session.redact(clean_json(value), level, is_name=is_name)
        except BaseException as error:  # noqa: BLE001 - the payload is dropped, not kept
            self._count_failure(describe_error(error))
            return UNREDACTABLE
        if counts.get("failed"):  # it dropped the parts that it could not redact
            self._count_failure("parts dropped")
        return clean_value

    def _count_failure(self, reason: str) -> None:
        self.has_failed = True
        self._counters.add("redaction_errors")
        warn_once(
            f"redaction:{reason}",
            "redaction failed (%s); what could not be redacted is dropped, and such runs do not "
            "pass",
            reason,
        )

    def task(self, value: str, level: str) -> str:
        """Return a task as `text` does; an answer to a question for a secret is one itself."""
        return self.text(self.secrets.clean_answer(clean(value)), level)

    def name(self, value: str, level: str) -> str:
        """Return the name of a tool, run or domain as `text` does; any word may be one."""
        return self.text(value, level, is_name=True)

    def text(self, value: str, level: str, *, is_name: bool = False) -> str:
        """Return a text redacted at a privacy level, and cut to the bound."""
        text = self._redacted_texts.get((value, level, is_name))
        if text is None:
            margin = MARGIN_CHARS if len(value) > self._max_chars else 0
            text = clip(
                str(self._redact(value, level, is_name=is_name)), self._max_chars, margin=margin
            )
            if self._hook is None:
                self._redacted_texts[value, level, is_name] = text
        return text

    def is_unchanged(self, value: str) -> bool:
        """Return whether redaction at the strictest level leaves a text unchanged."""
        return bool(self._redact(value, "aggregated", is_name=True) == value)

    def step(self, step: Mapping[str, Any], level: str) -> dict[str, Any]:
        """Return a step in wire form, redacted at a privacy level."""
        out = dict(step)
        if "content" in out:
            content = self.secrets.clean_answer(out["content"], is_step=True)
            out["content"] = self.text(content, level)
        if "tool" in out:  # its keys are ours; only its values come from the run
            out["tool"] = {
                key: _without_cuts(self.name(text, level)) or _REMOVED
                for key, text in out["tool"].items()
            }
        if "input" in out:
            out["input"] = self.mapping(out["input"], level)
        return out

    def mapping(self, value: Mapping[str, Any], level: str) -> Any:
        """Return a JSON-like mapping, redacted at a privacy level and cut to the bound."""
        values = self._redact(value, level)
        values = values if isinstance(values, dict) else {"input": values}
        was_cut = text_size(value) > self._max_chars
        return plain(_without_cuts(values, texts=was_cut), self._max_chars)


def _without_cuts(value: Any, *, texts: bool = True) -> Any:
    """Return a value without the margins beside cuts.

    Args:
        value: A JSON-like value.
        texts: Whether its texts may have been cut; its keys always may, each by its own length.
    """
    if isinstance(value, str):
        return clip(value, len(value), margin=MARGIN_CHARS) if texts else value
    if isinstance(value, dict):
        return {_without_cuts(key): _without_cuts(item, texts=texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_cuts(item, texts=texts) for item in value]
    return value
