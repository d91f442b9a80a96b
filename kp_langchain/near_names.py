"""Suggest the known name that an unknown one was probably meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from kp_langchain._logging import warn_once

_LONGEST_NAME_CHARS = 100
# One letter added, left out, replaced or swapped, in names of five letters or more.
_SIMILARITY_MIN = 0.8


def near_name(
    name: str, choices: Iterable[str], *, similarity_min: float = _SIMILARITY_MIN
) -> str | None:
    """Return the known name that `name` is probably a misspelling of.

    Case and separators make no difference. A known name with an addition, such as `finance_eu`,
    counts as a name of its own.

    Args:
        name: The name.
        choices: The known names.
        similarity_min: How similar the two must be, 0 to 1, as `difflib` measures it.

    Returns:
        None if `name` is known itself, or similar to no known name.
    """
    return _near_name(name, frozenset(choices), similarity_min)


def near_key(key: str, choices: Iterable[str]) -> str | None:
    """Return the known key that is most similar to an unknown key; None if none is similar.

    Suggests more readily than `near_name`, because an unknown key is a mistake in any case.
    """
    return next(iter(difflib.get_close_matches(key.lower(), choices, n=1)), None)


@lru_cache(maxsize=1000)
def _near_name(name: str, choices: frozenset[str], similarity_min: float) -> str | None:
    if name in choices or len(name) > _LONGEST_NAME_CHARS:
        return None
    normal = _normalise(name)
    by_normal_form = {_normalise(other): other for other in sorted(choices, reverse=True)}
    by_normal_form.pop("", None)
    matches = difflib.get_close_matches(normal, by_normal_form, n=1, cutoff=similarity_min)
    if not matches or _is_extension(normal, matches[0]):
        return None
    return by_normal_form[matches[0]]


def warn_of_domain(domain: str, choices: Iterable[str]) -> None:
    """Warn once about the unknown domain of a run, if its name is nearly a known one.

    Args:
        domain: The domain's name.
        choices: Names of domains with weights, a threshold or a policy.
    """
    near = near_name(domain, choices)
    if near is not None:
        warn_once(
            f"domain:{domain}",
            "domain %s has no weights, threshold or policy of its own, so the defaults apply; "
            "did you mean %s? Names of domains must match exactly",
            repr(domain),
            repr(near),
        )


def _normalise(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _is_extension(longer: str, name: str) -> bool:
    """Return whether `longer` is `name` with a digit, a word or two letters before or after it."""
    before, match, after = longer.partition(name)
    addition = before + after
    return bool(match and addition) and (len(addition) > 1 or not addition.isalpha())
