"""A secret planted anywhere in a random structure is gone; the rest stays, and is read again alike."""

from __future__ import annotations

import copy
import json
import random
import string
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kp_langchain.redaction import LEVELS, redact

LETTERS = string.ascii_letters + string.digits


def _drawn(seed: int, length: int) -> str:
    # Never without a digit and both cases, as generators of keys see to.
    return "a7Q" + "".join(random.Random(seed).choices(LETTERS, k=length - 3))


seeds = st.integers(0, 2**32)
# What is planted, and the part of it that must be gone.
by_itself = st.one_of(
    seeds.map(lambda n: (f"ghp_{_drawn(n, 36)}",) * 2),
    seeds.map(lambda n: (f"sk-proj-{_drawn(n, 48)}",) * 2),
    seeds.map(lambda n: (f"xoxb-1234567890-{_drawn(n, 24)}",) * 2),
    seeds.map(lambda n: (f"glpat-{_drawn(n, 20)}",) * 2),
    seeds.map(lambda n: (f"postgresql://app:{_drawn(n, 12)}@db.internal/x", _drawn(n, 12))),
    seeds.map(lambda n: (f"Authorization: Bearer {_drawn(n, 30)}", _drawn(n, 30))),
    seeds.map(lambda n: (f"password={_drawn(n, 9)}", _drawn(n, 9))),
    seeds.map(lambda n: (f"the API key is {_drawn(n, 24)}.", _drawn(n, 24))),
    seeds.map(lambda n: (f"deploy --client-secret {_drawn(n, 14)} now", _drawn(n, 14))),
    seeds.map(lambda n: (f"u{n}@example.com",) * 2),
)
# (name, secret): telling only together.
named = st.tuples(
    st.sampled_from(["password", "apiKey", "X-Auth-Token", "client_secret", "DB_PASSWORD"]),
    seeds.map(lambda n: _drawn(n, 10)),
)
benign = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30),
    st.binary(max_size=20),
)  # fmt: skip
names = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@dataclass
class Box:
    content: Any
    note: str = "x"


def _wrap(draw: st.DrawFn, inner: Any) -> Any:
    kind = draw(st.integers(0, 9))
    before, after = draw(st.lists(benign, max_size=2)), draw(st.lists(benign, max_size=2))
    plain = isinstance(inner, str)
    if kind == 0:
        return [*before, inner, *after]
    if kind == 1:
        return (*before, inner, *after)
    if kind == 2:
        return {draw(names): inner, **dict.fromkeys(draw(st.lists(names, max_size=2)), 1)} | {
            f"_{draw(names)}": inner
        }
    if kind == 3 and plain:
        return {inner: draw(benign)}
    if kind == 4 and plain:
        return frozenset([inner, draw(names)])
    if kind == 5 and plain:
        return inner.encode()
    if kind == 6:
        return Box(inner)
    if kind == 7 and plain:
        return f"{draw(names)} {inner} {draw(names)}"
    try:  # JSON inside a string; twice, and it is escaped
        return json.dumps({draw(names): inner}) if kind == 8 else json.dumps([inner])
    except (TypeError, ValueError):
        return [inner]


@st.composite
def planted(draw: st.DrawFn) -> tuple[Any, str]:
    if draw(st.booleans()):
        value, secret = draw(by_itself)
    else:
        name, secret = draw(named)
        value = draw(
            st.sampled_from(
                [
                    {name: secret}, {name: [secret]}, [(name, secret)], f"{name}: {secret}",
                    {"name": name, "value": secret}, {name.encode(): secret.encode()},
                    f'{{"{name}": "{secret}"}}',
                ]
            )
        )  # fmt: skip
    for _ in range(draw(st.integers(0, 5))):
        value = _wrap(draw, value)
    return value, secret


def written(value: Any) -> str:
    """The value as text, the same for equal sets and for NaN."""
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(written, value)))}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(written, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())}}}"
    return f"Box({written(value.content)})" if isinstance(value, Box) else repr(value)


@given(planted(), st.sampled_from(["aggregated", "private"]))
@example(('[["password", "a7QbNrfIPw"]]', "a7QbNrfIPw"), "aggregated")
def test_what_was_planted_is_gone(what: tuple[Any, str], level: str) -> None:
    value, secret = what
    if level == "private" and secret.endswith("@example.com"):
        return
    before = copy.deepcopy(value)
    done = redact(value, level=level)
    assert secret not in repr(done.value)
    assert not any(secret in kind for kind in done.counts)
    assert written(value) == written(before)
    again = redact(done.value, level=level)
    assert (written(again.value), again.counts) == (written(done.value), {})


@pytest.mark.parametrize("level", ["aggregated", "private"])
def test_our_own_ids_and_times_stay(level: str) -> None:
    ids = {
        "id": f"kp:trace:{UUID(int=7)}",
        "run_id": str(UUID(int=11 * 10**30)),
        "agent_id": "kp:agent:desk",
        "source_skill": "kp:skill:compare:1.2.0",
        "created_at": "2026-02-01T12:00:00.123Z",
        "sha": "3f786850e387550fdab836ed7e6dc881de23001b",
        "tool_call_id": "call_a7Q3kd93JfkE0sPqLm2xYz81",
        "model": "gpt-5-mini-2025-08-07",
    }
    assert redact(ids, level=level).value == ids
    assert redact(json.dumps(ids), level=level).value == json.dumps(ids)


AWKWARD = (
    "password= token: \"api_key\": 'secret' -- Bearer Basic :// @ : [REDACTED:email] [REDACTED: "
    '] \\" \\n % %3D bob@example.com 1.2.3.4 +15394365224 /home/bob Cookie: a=b; <pin> </pin> '
    "is the { } [ ] , ; & = 4111111111111111 eyJ sk- ghp_ $1$ hunter22 a1b2c3d4e5f6g7"
)
PIECES = AWKWARD.split()
_pieces = st.one_of(
    st.text(st.characters(), max_size=10),
    st.sampled_from(PIECES),
)


@given(st.lists(_pieces, max_size=12), st.sampled_from(["", " "]), st.sampled_from(LEVELS))
@example(["postgres://u:p@h:1/x"], "", "aggregated")
@example(["Password", "000000", "000000", "4111111111111111"], " ", "aggregated")
def test_redacting_again_changes_nothing(pieces: list[str], between: str, level: str) -> None:
    text = between.join(pieces)
    once = redact(text, level=level)
    again = redact(once.value, level=level)
    assert again.value == once.value
    assert again.counts == {}


_anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.complex_numbers(),
        st.text(st.characters(), max_size=20),
        st.binary(max_size=20),
        st.builds(object),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.integers(), st.sampled_from(["password", "name"])),
            inner,
            max_size=4,
        ),
        st.frozensets(st.one_of(st.text(max_size=6), st.integers()), max_size=4),
    ),
    max_leaves=15,
)


@given(_anything, st.sampled_from(LEVELS))
@example({"Passord": b"\0"}, "aggregated")
@example({4111111111111111: 10000000, "pair": ["[REDACTED:password]", "x"]}, "aggregated")
def test_no_structure_makes_it_raise_or_change_its_input(value: Any, level: str) -> None:
    before = repr(value)
    result = redact(value, level=level)
    assert repr(value) == before
    assert "failed" not in result.counts
    assert redact(result.value, level=level).counts == {}
