"""Names that are not known, and the known ones that were probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from kp_langchain._logging import warn_once

_LONGEST_NAME_CHARS = 100
# A letter too many, too few, another or exchanged, in names from five letters on.
_ALIKE_MIN = 0.8


def near_name(name: str, known: Iterable[str], *, alike_min: float = _ALIKE_MIN) -> str | None:
    """Return the known name that was probably meant by one that is not known.

    Case and separators make no difference. A known name with more added, such as `finance_eu`, is
    taken for a name of its own.

    Args:
        name: The name.
        known: The known ones.
        alike_min: How alike two names must be, 0 to 1, as `difflib` measures it.

    Returns:
        None if the name is a known one, or near none of them.
    """
    return _near_name(name, frozenset(known), alike_min)


@lru_cache(maxsize=1000)
def _near_name(name: str, known: frozenset[str], alike_min: float) -> str | None:
    if name in known or len(name) > _LONGEST_NAME_CHARS:
        return None
    spelt = _spelt(name)
    by_spelling = {_spelt(one): one for one in sorted(known, reverse=True)}
    by_spelling.pop("", None)
    near = difflib.get_close_matches(spelt, by_spelling, n=1, cutoff=alike_min)
    if not near or _adds_a_part(spelt, near[0]):
        return None
    return by_spelling[near[0]]


def warn_of_domain(domain: str, known: Iterable[str]) -> None:
    """Say once that a domain of runs is not known, if it is nearly one that is.

    Args:
        domain: The domain's name.
        known: Names of domains with weights, a threshold or a policy.
    """
    meant = near_name(domain, known)
    if meant is not None:
        warn_once(
            f"domain:{domain}",
            "domain %s has no weights, threshold or policy of its own, so the default ones hold; "
            "did you mean %s? Names of domains are exact",
            repr(domain),
            repr(meant),
        )


def _spelt(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _adds_a_part(longer: str, name: str) -> bool:
    """Whether a name is another one with a digit, a word or two letters before or behind it."""
    before, found, behind = longer.partition(name)
    more = before + behind
    return bool(found and more) and (len(more) > 1 or not more.isalpha())
