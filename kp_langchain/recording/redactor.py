"""Removes secrets, identifiers, and quotes of the examples that a run was shown, from its texts.

What a model or a retriever repeats from an example is not the run's own work. If it stayed, a kept
trace would contain other traces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.bounds import MARGIN_CHARS, default_on_error
from kp_langchain.recording.tool_definitions import tool_definitions
from kp_langchain.recording.values import plain
from kp_langchain.redaction import open_session
from kp_langchain.store.rows import json_text
from kp_langchain.values import clean_text, clip, map_texts, text_size

if TYPE_CHECKING:
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.pauses import Exchange
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.redaction.repeated import Secrets
    from kp_langchain.redaction.secret_search import SecretTraits

UNREDACTABLE = "[REDACTED:failed]"
_REMOVED = "(removed)"  # in place of an empty text if the wire form requires a text


def clean_texts(value: Any) -> Any:
    """Return a copy of a JSON-like value with every text in it as `clean_text` returns it."""
    return map_texts(value, clean_text)


def _without_cuts(text: str) -> str:
    """Return a text without the margins beside cuts."""
    return clip(text, len(text), margin=MARGIN_CHARS)


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
        self._hook, self._rules = hook, rules
        self._session = open_session(rules=rules, redactor=hook)
        # Texts recur: the name of a tool with each call, the last thought as the answer.
        self._redacted_texts: dict[tuple[str, str, bool], str] = {}
        # What `learn` was given, with its `clean_texts`, if nothing in it is sensitive; by the id
        # of the part, and the level.
        self._harmless_parts: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.has_failed = False
        self._is_out_of_order = False

    @property
    def secrets(self) -> Secrets:
        """What the run has named; add to it what is known from elsewhere."""
        return self._session.secrets

    def learn(self, parts: Iterable[Any], level: str, exchanges: Iterable[Exchange] = ()) -> None:
        """Record the secrets that a run names, to remove them from all of it.

        Args:
            parts: All that will be redacted, as it will be.
            level: The privacy level at which it will be.
            exchanges: What a human was asked and answered.
        """
        self._redacted_texts.clear()
        try:
            for question, answer, is_step in exchanges:
                self._session.learn_answer(
                    clean_text(question), clean_text(answer), is_step=is_step
                )
            non_empty = [part for part in parts if part]
            clean_parts = [clean_texts(part) for part in non_empty]
            if self._session.learn(clean_parts, level) and self._hook is None:
                pairs = zip(non_empty, clean_parts, strict=True)
                self._harmless_parts = {(id(pair[0]), level): pair for pair in pairs}
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
        pair = self._harmless_parts.get((id(value), level))
        if pair is not None and not self.secrets:
            return pair[1]
        try:
            clean_value, counts = self._session.redact(clean_texts(value), level, is_name=is_name)
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
        return self.text(self.secrets.clean_answer(clean_text(value)), level)

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
        # Keys are cut by their own length, texts only if there is too much of them.
        was_cut = text_size(value) > self._max_chars
        texts = _without_cuts if was_cut else str
        return plain(map_texts(values, texts, change_key=_without_cuts), self._max_chars)

    def model_name(self, value: str) -> str:
        """Return the name of a model or of who serves it, redacted at the strictest level."""
        name: str = self._recurring(("name", value), lambda: self.name(value, "aggregated"))
        return name

    @default_on_error(())  # whatever it holds, the run is recorded
    def definitions(self, lists: Iterable[Sequence[Any]]) -> tuple[dict[str, Any], ...]:
        """Return the tools that models were given, redacted at the strictest level.

        Args:
            lists: Lists of definitions, as models were given them.

        Returns:
            Each tool once; none if they cannot be redacted.
        """
        tools = tool_definitions(lists)
        if not tools or self._is_out_of_order:
            return ()

        # Text by text: a parameter that is called `password` is no secret.
        def clean(text: str) -> str:
            return str(self._redact(text, "aggregated", is_name=True)) if text else text

        definitions = self._recurring(
            ("tools", json_text(tools)), lambda: tuple(map_texts(tools, clean))
        )
        return () if self.has_failed else definitions

    def _recurring(self, key: tuple[str, str], redact: Callable[[], Any]) -> Any:
        """Return what most runs have alike, as it was redacted before if this one names no secret.

        Args:
            key: What it is, and what it is redacted from.
            redact: Redacts it.
        """
        if self._hook is not None or self.secrets or self._is_out_of_order:
            return redact()
        known = _recurring.get(key)
        if known is not None and known[0] is self._rules:
            return known[1]
        result = redact()
        if not self.has_failed:
            if len(_recurring) >= _MOST_RECURRING:
                _recurring.clear()
            _recurring[key] = (self._rules, result)
        return result


_MOST_RECURRING = 500
_recurring: dict[tuple[str, str], tuple[Rules | None, Any]] = {}


# ------------------------------------------------------------------ secrets of earlier runs

_MOST_KNOWN = 2000  # conversations and runs
_MOST_SECRET_CHARS = 2_000_000

Key = tuple[str, ...]
"""What identifies a conversation or a run, such as "thread", its id and its namespace."""


class LiveSecrets:
    """The secrets of the conversations, or of the runs, that this process saw last.

    They are removed from later turns and notes of verdicts. They stay in memory, bounded, the
    oldest dropped first. All handlers of the process share them, because handlers are often made
    per request. Sharing is safe: it can only redact more.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._known: OrderedDict[Key, Mapping[str, SecretTraits]] = OrderedDict()
        self._chars = 0

    def recall(self, keys: Iterable[Key], secrets: Secrets) -> None:
        """Add to `secrets` what is known, as far as there is room.

        Args:
            keys: What identifies the conversations or runs.
            secrets: Added to.
        """
        if self._known:
            with self._lock:
                for key in keys:
                    secrets.add_all(self._known.get(key, {}))

    def remember(self, keys: Iterable[Key], secrets: Secrets) -> None:
        """Remember what a run has named, and what was known before.

        Args:
            keys: What identifies the run or its conversations.
            secrets: What it has named.
        """
        if not secrets:
            return
        named = secrets.named
        with self._lock:
            for key in keys:
                self._chars -= sum(map(len, self._known.pop(key, ())))
                self._chars += sum(map(len, named))
                self._known[key] = named
            while len(self._known) > _MOST_KNOWN or (
                self._chars > _MOST_SECRET_CHARS and len(self._known) > 1
            ):
                _, oldest = self._known.popitem(last=False)
                self._chars -= sum(map(len, oldest))


KNOWN_SECRETS: Final = LiveSecrets()


# ------------------------------------------------------------------ quotes of examples

# Shorter lines of examples, such as `Answer: yes`, may well be the run's own.
_SHORTEST_QUOTE_CHARS = 22
_MOST_EXAMPLE_CHARS = 100_000


def quoted_lines(examples: Iterable[str]) -> frozenset[str]:
    """Return the lines of examples that count as quotes where a run repeats them."""
    lines = "\n".join(examples)[:_MOST_EXAMPLE_CHARS].splitlines()
    return frozenset(line.strip() for line in lines if len(line.strip()) >= _SHORTEST_QUOTE_CHARS)


def without_lines(text: str, lines: frozenset[str]) -> str:
    """Return `text` without the lines that are among `lines`."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() not in lines)
