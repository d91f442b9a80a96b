"""What the runs of this process named as secrets, for later turns of their conversations.

In memory only, and bounded: the conversation used longest ago is forgotten first. It belongs to the
process, because handlers are often made per request. To know a secret only ever removes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kp_langchain._forksafe import ForkSafeLock

if TYPE_CHECKING:
    from kp_langchain.redaction.repeated import Secrets

MOST_CONVERSATIONS: Final = 1000
MOST_CHARS: Final = 1_000_000

Key = tuple[str, str]
"""A kind of id, such as "thread", and an id."""

_lock = ForkSafeLock()
_known: OrderedDict[Key, Secrets] = OrderedDict()


def recall(keys: Iterable[Key], secrets: Secrets) -> None:
    """Add to `secrets` what is known of conversations or runs.

    Args:
        keys: Their ids.
        secrets: Added to.
    """
    if _known:
        with _lock:
            for key in keys:
                if key in _known:
                    _known.move_to_end(key)
                    secrets.add_all(_known[key])


def remember(keys: Iterable[Key], secrets: Secrets) -> None:
    """Remember what a run has named, and what was known before.

    Args:
        keys: The ids of the run and of its conversations.
        secrets: What it has named; not changed any more.
    """
    if not secrets:
        return
    with _lock:
        for key in keys:
            _known[key] = secrets
            _known.move_to_end(key)
        chars = sum(one.chars for one in {id(one): one for one in _known.values()}.values())
        while len(_known) > MOST_CONVERSATIONS or (chars > MOST_CHARS and len(_known) > 1):
            _, oldest = _known.popitem(last=False)
            chars -= oldest.chars


def forget_all() -> None:
    """Forget what is known of every conversation."""
    with _lock:
        _known.clear()
