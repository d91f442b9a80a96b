"""`Session`: redaction of one value, or of the parts of one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.redaction.questions import secrets_given
from kp_langchain.redaction.repeated import Secrets, SecretSearch
from kp_langchain.redaction.spans import placeholder
from kp_langchain.redaction.walk import CleanTexts, Walker


class Session:
    """Redacts parts that belong together: what one of them names as a secret goes from all.

    So every part is first given to `learn`, and then to `redact`, which costs little more, because
    what became of a text is remembered.

    Args:
        rules: The user's rules.
        redactor: The user's function for each text that is left, if any.

    Attributes:
        secrets: What the parts have named so far.
    """

    def __init__(
        self, *, rules: Rules | None = None, redactor: Callable[[str], str] | None = None
    ) -> None:
        self.secrets = Secrets()
        self._rules = rules or _NO_RULES
        self._redactor = redactor
        self._clean_texts: dict[bool, CleanTexts] = defaultdict(dict)

    def learn(self, parts: Sequence[Any], level: str) -> bool:
        """Take note of the secrets that the parts name.

        Args:
            parts: All parts: texts, and mappings such as the inputs of tools.
            level: The privacy level at which they will be redacted.

        Returns:
            Whether nothing in them is sensitive by itself.
        """
        walker = self._walker(level)
        for part in parts:
            walker.walk(part)
        return not walker.counts

    def learn_answer(self, question: str, answer: str, *, is_step: bool) -> None:
        """Take note of the secrets that an answer gives, if the question asks for one.

        Args:
            question: What somebody was asked.
            answer: What they answered.
            is_step: Whether the answer is a step of the run, and not its task.
        """
        given = secrets_given(question, answer)
        secrets = [one for one in given if not self._rules.allows(one.text)]
        if secrets:
            self.secrets.note_answer(answer, secrets, is_step=is_step)

    def redact(self, value: Any, level: str, *, is_name: bool = False) -> tuple[Any, Counter[str]]:
        """Return a value redacted, and the number of replacements per kind.

        Args:
            value: Any value.
            level: The privacy level.
            is_name: Whether it is the name of a tool or the like, which may be any word.
        """
        while True:
            search = self.secrets.search
            walker = self._walker(level, search=search)
            clean = walker.walk(value)
            if self.secrets.search is search:
                break
        if (
            search is not None
            and isinstance(clean, str)
            and not (is_name or any(map(str.isdigit, clean)))
        ):
            kind = search.kind_of_value(clean)
            if kind is not None:
                walker.counts[kind] += 1
                clean = placeholder(kind)
        if self._redactor is None:
            return clean, walker.counts
        last = self._walker(level, redactor=self._redactor)
        return last.walk(clean), walker.counts + last.counts

    def _walker(
        self,
        level: str,
        *,
        search: SecretSearch | None = None,
        redactor: Callable[[str], str] | None = None,
    ) -> Walker:
        identifiers = level != "private"
        return Walker(
            identifiers=identifiers,
            rules=self._rules,
            search=search,
            redactor=redactor,
            secrets=self.secrets,
            clean_texts=self._clean_texts[identifiers],
        )


_NO_RULES = Rules()
