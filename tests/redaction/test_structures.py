from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kp_langchain.redaction import LEVELS, Redaction, redact

Point = namedtuple("Point", "name password")


def test_every_structure_keeps_its_shape() -> None:
    email = "bob@example.com"
    given = {
        "list": [email, 1, 2.5, None, True],
        "tuple": (email, (email,)),
        "named": Point(email, 3),
        "frozen": frozenset({email, "keep"}),
        "bytes": email.encode() + b"\xff",
        "array": bytearray(email.encode()),
        email: 1,
        ("pair", email): 2,
        7: 3,
    }
    before = copy.deepcopy(given)
    value = redact(given).value
    mark = "[REDACTED:email]"
    assert given == before
    assert value == {
        "list": [mark, 1, 2.5, None, True],
        "tuple": (mark, (mark,)),
        "named": Point(mark, 3),
        "frozen": frozenset({mark, "keep"}),
        "bytes": mark.encode() + b"\xff",
        "array": bytearray(mark.encode()),
        mark: 1,
        ("pair", mark): 2,
        7: 3,
    }
    assert type(value["named"]) is Point
    assert type(value["array"]) is bytearray


def test_numbers_under_telling_names_and_card_numbers_go() -> None:
    value = redact({"pin": 4821, "password": 99887766, "note": 4111111111111111, "n": 12}).value
    assert value == {
        "pin": "[REDACTED:pin]",
        "password": "[REDACTED:password]",
        "note": "[REDACTED:card]",
        "n": 12,
    }


def test_entries_are_not_lost_when_their_keys_are_redacted() -> None:
    many = {f"user{n}@example.com": n for n in range(50)}
    result = redact({"map": many, "set": set(many)})
    assert sorted(result.value["map"].values()) == list(range(50))
    assert len(result.value["set"]) == 50
    assert "example" not in str(result.value)
    assert redact(result.value) == Redaction(result.value, {})


def test_subclasses_and_objects_become_plain() -> None:
    @dataclass
    class Config:
        password: str

    config = Config("hunter22")
    marked = OrderedDict([("password", "hunter22")])
    assert type(redact(marked).value) is dict
    assert redact(defaultdict(list, a=["bob@example.com"])).value == {"a": ["[REDACTED:email]"]}
    assert redact([config]).value == [{"password": "[REDACTED:password]"}]
    assert "hunter22" not in repr(redact({"password": config}).value)


def test_cycles_sharing_and_depth_are_bounded() -> None:
    loop: list[Any] = ["bob@example.com"]
    loop.append(loop)
    assert redact(loop).value == ["[REDACTED:email]", "[REDACTED:cycle]"]

    shared: Any = ["bob@example.com"]
    for _ in range(60):
        shared = [shared, shared]  # 2**60 paths
    assert redact(shared).counts

    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)):
        deep: Any = "bob@example.com"
        for _ in range(20_000):
            deep = wrap(deep)
        result = redact(deep)
        assert result.counts == {"depth": 1}
        assert "bob" not in repr(result.value)
        assert redact(result.value).counts == {}


def test_what_cannot_be_judged_is_dropped() -> None:
    class Broken(str):
        def __hash__(self) -> int:
            return 1

    class Hostile:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

    class Pair(tuple):
        @classmethod
        def _make(cls, items: object) -> Any:
            raise RuntimeError("no")

    result = redact([Hostile(), Pair(["bob@example.com"]), "fine", Broken("bob@example.com")])
    assert result.value == ["[REDACTED:failed]", "[REDACTED:failed]", "fine", "[REDACTED:email]"]
    assert result.counts["failed"] == 2


def test_interrupts_pass_through() -> None:
    class Stop:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        redact([Stop()])


_secrets = st.one_of(
    st.text("0123456789ABCDEFGHJKLMNPQRSTUVWX", min_size=16, max_size=16).map("AKIA".__add__),
    st.text("0123456789abcdef", min_size=20, max_size=40).map(lambda tail: f"glpat-{tail}x"),
    st.text("abcdefghjkmnpqrstuvwxyz23456789", min_size=36, max_size=36).map("ghp_".__add__),
    st.text("abcdefghjkmnpqrstuvwxyz23456789", min_size=8, max_size=12).map(
        lambda password: f"postgresql://app:{password}7x@db/x"
    ),
)
_plain = st.sampled_from(["fine", "value 12", "", "order #W123", "2024-08-06", "a, b; c"])
_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _plain)
_structures = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner, inner),
        st.dictionaries(st.sampled_from(["a", "items", "note", "result", "n"]), inner, max_size=4),
    ),
    max_leaves=12,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, item in value.items():
            found += _places(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            found += _places(item, (*path, place))
    return found


def _planted(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    if not path:
        return leaf
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {k: _planted(v, rest, leaf) if k == first else v for k, v in value.items()}
    items = [_planted(v, rest, leaf) if n == first else v for n, v in enumerate(value)]
    return type(value)(items)


@given(structure=_structures, secret=_secrets, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_planted_secret_is_gone_and_the_rest_stays(
    structure: Any, secret: str, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(_places(structure)))
    before, after = data.draw(
        st.sampled_from([("", ""), ("see ", " now"), ("(", ")"), ("\n", "\n")])
    )
    whole = _planted(structure, path, f"{before}{secret}{after}")
    result = redact(whole, level="private")

    def leaf(value: Any) -> Any:
        for step in path:
            value = value[step]
        return value

    kept = leaf(result.value)
    credential = secret.split("app:")[-1].split("@")[0]
    assert credential not in repr(result.value)
    assert kept.startswith(before)
    assert kept.endswith(after)
    assert repr(_planted(result.value, path, None)) == repr(_planted(structure, path, None))


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
@settings(max_examples=400, deadline=None)
@example(["postgres://u:p@h:1/x"], "", "aggregated")
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
@settings(max_examples=200, deadline=None)
@example({4111111111111111: 10000000, "pair": ["[REDACTED:password]", "x"]}, "aggregated")
def test_no_structure_makes_it_raise_or_change_its_input(value: Any, level: str) -> None:
    before = repr(value)
    result = redact(value, level=level)
    assert repr(value) == before
    assert "failed" not in result.counts
    assert redact(result.value, level=level).counts == {}
