"""A finder matches nothing in a text without the symbols and words that it requires."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.redaction import text
from kp_langchain.redaction.finders import Finder, symbols_in
from kp_langchain.redaction.stems import stems_in
from tests.redaction.cases import BENIGN, IDENTIFIERS, LOOKALIKES, SECRETS, STRUCT

FINDERS = [*text.FINDERS[False], *text.FINDERS[True]]
SYMBOLS = string.punctuation + string.digits
# Letters that are others in lower case; words are not looked for in them.
ODD = dict.fromkeys(map(ord, "\u0130\u0131\u017f\u212a"), "x")


def _text(given: Any) -> str:
    return given if isinstance(given, str) else repr(given)


# Writings that the cases have not, one for each alternative that none of them needs.
RARE = (
    "login bob / hunter\u0662",
    "login bob | hunter22",
    "basic QWxhZGRpbjpvcGVu1zE",
    "basic QWxhZGRpbjpvcGVuc=",
    "bob@host:~/src# make",
    "bob@host:/src$ make",
    "%2Fhome%2Fbob%2Fx",
    "aabb.ccdd.eef0",
    "aa-bb-cc-dd-ee-f0",
    "app:hunter22@unix(/run/db)/shop",
    "oracle:thin:scott/tiger22@db",
    "identified by 'hunter22'",
    "login(\"bob\", 'hunter22')",
    "bob (at) example (dot) com",
    "bob at example dot com",
)
TEXTS = sorted(
    {*RARE, *(_text(case[1]) for case in [*SECRETS, *STRUCT, *IDENTIFIERS, *BENIGN, *LOOKALIKES])}
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A case, or two cut and glued, some characters of it gone or changed throughout."""
    written = "".join(
        case[draw(st.integers(0, 20)) : draw(st.integers(0, 400))] if draw(st.booleans()) else case
        for case in draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=2))
    )
    for sign in draw(st.lists(st.sampled_from(SYMBOLS), max_size=4)):
        written = written.replace(sign, draw(st.sampled_from(["", " ", "x", "\u0663", "\uff20"])))
    at = draw(st.integers(0, len(written)))
    written = written[:at] + draw(st.text(max_size=5)) + written[at:]
    return written.translate(ODD)


def may_find(finder: Finder, written: str, low: str) -> bool:
    """Whether the finder would be asked at all."""
    stands = not finder.words or any(word in low for word in finder.words)
    is_named = not finder.is_named or bool(stems_in(low))
    is_long = len(written) >= finder.shortest
    return stands and is_named and is_long and _has_symbols(finder, written)


@given(texts())
def test_a_finder_that_is_not_asked_would_have_found_nothing(written: str) -> None:
    low = written.lower()
    if len(low) != len(written):
        low = "".join(map(_low, written))
    for finder in FINDERS:
        if not may_find(finder, written, low):
            assert list(finder.find(written, low)) == []


def _low(letter: str) -> str:
    return letter.lower() if letter.isascii() else letter


def _has_symbols(finder: Finder, written: str) -> bool:
    symbols = symbols_in(written)
    return any(symbols.issuperset(map(ord, alternative)) for alternative in finder.symbols)


@pytest.mark.parametrize("finders", list(text.FINDERS.values()))
def test_together_they_find_what_each_finds(finders: Any) -> None:
    for written in TEXTS:
        low = "".join(map(_low, written))
        found = finders.find(written, low, symbols_in(written))
        assert found == [span for finder in finders for span in finder.find(written, low)]


def test_finders_require_only_symbols_and_lower_case_words() -> None:
    for finder in FINDERS:
        for alternative in finder.symbols:
            assert _has_symbols(finder, alternative), alternative
            assert all(word == word.lower() for word in finder.words)
