"""What the runs of this process named as secrets, for later turns and for notes of verdicts.

In memory only, and bounded: what was named longest ago is forgotten first. It belongs to the
process, because handlers are often made per request. To know a secret only ever removes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kp_langchain._forksafe import ForkSafeLock

if TYPE_CHECKING:
    from kp_langchain.redaction.repeated import Secrets
    from kp_langchain.redaction.secret_search import Named

MOST_KNOWN: Final = 1000
"""The most conversations, and the most runs."""
MOST_CHARS: Final = 1_000_000
"""The most characters of the secrets of all conversations, and of all runs."""

Key = tuple[str, ...]
"""What identifies a conversation or a run, such as "thread", its id and its namespace."""


class LiveSecrets:
    """The secrets of the conversations, or of the runs, that this process saw last."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._known: OrderedDict[Key, Mapping[str, Named]] = OrderedDict()
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
            while len(self._known) > MOST_KNOWN or (
                self._chars > MOST_CHARS and len(self._known) > 1
            ):
                _, oldest = self._known.popitem(last=False)
                self._chars -= sum(map(len, oldest))

    def forget_all(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()
            self._chars = 0


conversations: Final = LiveSecrets()
runs: Final = LiveSecrets()
