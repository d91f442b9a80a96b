from __future__ import annotations

import copy
import json
import random
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kp_langchain.redaction import LEVELS, Redaction, redact
from kp_langchain.redaction.tables import load_table
from tests.redaction.cases import left_over
from tests.redaction.drawn import compose

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


HARMLESS_STRUCTURES: list[Any] = [
    {
        "password": {
            "type": "string",
            "description": "The password of the user",
            "title": "Password",
        }
    },
    {"password": {"type": ["string", "null"], "minLength": 8, "format": "password"}},
    {"token": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Token", "default": None}},
    {"api_key": {"$ref": "#/components/schemas/Key"}, "secret": {"type": "varchar(255)"}},
    {"api_key": {"type": "apiKey", "name": "X-API-Key", "in": "header"}},
    {"bearerAuth": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
    {"name": "token", "in": "query", "required": True, "schema": {"type": "string"}},
    {"arguments": [{"name": "token", "description": "The token to use", "required": True}]},
    {"login_password": {"type": "str", "aliases": ["password"], "no_log": True}},
    {"token": " the", "logprob": -0.1, "bytes": [32, 116], "top_logprobs": []},
    {"score": 0.2, "token": 2003, "token_str": "is", "sequence": "this is"},
    {"event": "token", "data": {"token": "Understood", "index": 0}},
    {"method": "POST", "credentials": "include"},
    {"selector": "#forgot-password", "text": "Forgot"},
    {"selector": ".password-error", "text": "Required"},
    {"label": "Password", "text": "Password"},
    {"title": "How to reset your password", "content": "Click on the link below"},
    {"secrets": [{"name": "DEPLOY_KEY", "created_at": "2024-08-01T10:00:00Z"}]},
    {"secrets": [{"name": "DB", "valueFrom": "arn:aws:ssm:eu-west-1:123456789012:parameter/db"}]},
    {"columns": ["user", "age"], "rows": [["bob", 3]]},
    {"type": "token", "value": "identifier"},
    {"kind": "ConfigMap", "data": {"mode": "fast7"}},
]
HARMLESS_TEXTS = [
    "we need user, password\nand later, something",
    "  login     Log in\n  password  Change password\n  profile   Edit\n",
    "Token   Count\nthe     52\nof      10",
    "NAME      READY   SECRET     AGE\napi       True    my-tls     5d",
    "NAME      SECRETS   AGE\ndefault   1         5d",
    "SELECT id, token\nFROM x, y",
    "| Field | Type |\n|---|---|\n| password | string |",
    "| Parameter | Description |\n|---|---|\n| token | The token to use |",
    "| Method | Password |\n|---|---|\n| basic | required |\n| none | - |",
    "name,password_policy\napi,strict",
    "kind: ConfigMap\ndata:\n  mode: fast7\n",
    "kubectl create configmap x --from-literal=mode=fast7",
    "$ kubectl get secret x -o name\nsecret/x",
    "root:x:0:0:root:/root:/bin/bash\nbob:x:1000:1000:Bob:/nowhere:/bin/sh",
    "page.fill('#username', 'bob')",
    "page.get_by_label('Password').click()\npage.get_by_label('City').fill('Paris')",
    "cy.get('.password-error').contains('Required')",
    "cy.get('#forgot-password').type('abc')",
    'Type "help" to see the password rules',
    "page.fill('#password', PASSWORD)",
]


@pytest.mark.parametrize("given", [*HARMLESS_STRUCTURES, *HARMLESS_TEXTS])
def test_look_alikes_of_records_and_tables_stay(given: Any) -> None:
    assert redact(given) == Redaction(given, {})
    text = json.dumps(given)
    assert redact(text) == Redaction(text, {})


_ROWS = [
    *load_table("contexts")["context"],
    *(
        row
        for name in ("notation", "relation", "below", "code")
        for row in load_table("links")[name]
    ),
]


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row["finds"][0])
def test_the_examples_of_each_context_and_link_hold(row: dict[str, Any]) -> None:
    source = random.Random(31)
    for template in row["finds"] * 5:
        text, secret = compose(template, source)
        assert not left_over(secret, redact(text, level="private").value)
    for text in row["keeps"]:
        assert redact(text) == Redaction(text, {})


def test_samples_in_a_schema_that_may_be_real_are_redacted() -> None:
    value = "Sunny" + "#Day42"
    schema = {"type": "string", "description": "of the user", "default": value, "examples": [value]}
    assert redact({"password": schema}).value == {
        "password": {
            "type": "string",
            "description": "of the user",
            "default": "[REDACTED:password]",
            "examples": ["[REDACTED:password]"],
        }
    }


@pytest.mark.parametrize(
    "record",
    [
        {"Type": "SecureString", "Name": "/prod/relay", "Value": "swordfish"},
        {"Name": "relay", "SecretString": "swordfish"},
        {"key": "RELAY", "value": "swordfish", "masked": True, "protected": False},
        {"relay": {"sensitive": True, "type": "string", "value": "swordfish"}},
        {"type": "CONCEALED", "label": "relay", "value": "swordfish"},
        {"kind": "Secret", "data": {"relay": "swordfish"}},
        {"kind": "Secret", "stringData": {"relay": {"inner": "swordfish"}}},
        {"question": "What is the database password?", "answer": "swordfish"},
        {"type": "password", "value": "swordfish"},
        {"cookies": [{"name": "theme", "value": "swordfish", "domain": "a.io"}]},
        {"selector": "form#login > input.wide[type=password]", "text": "swordfish"},
        {"locator": "//input[@id='password']", "text": "swordfish"},
    ],
)
def test_what_marks_a_value_as_secret_in_a_record_is_understood(record: dict[str, Any]) -> None:
    for written in (record, {"items": [record]}, json.dumps(record)):
        assert "swordfish" not in repr(redact(written, level="private").value)


def test_only_the_value_of_a_record_in_a_sensitive_list_goes() -> None:
    cookie = {"name": "theme", "value": "swordfish", "domain": "a.io", "path": "/"}
    assert redact({"cookies": [cookie]}).value == {
        "cookies": [{**cookie, "value": "[REDACTED:cookie]"}]
    }


def test_lines_of_a_private_key_in_a_list_go() -> None:
    body = ["MIIEpAIBAAKC" + "aB3dE5gH7jK9" * 4, "q7L9s1tU3wX5" * 5]
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    for lines in ([begin, *body, end], [begin, *body], body):
        assert not {*body} & {*redact([*lines, "after"]).value} or lines == body
        assert "aB3dE5gH7jK9" not in repr(redact(lines).value)
    quoted = "\n".join(f'"{line}\\n"' for line in [begin, *body])
    assert "q7L9s1tU3wX5" not in redact(quoted).value
    public = "ssh-rsa AAAAB3NzaC1yc2E" + "aB3dE5gH7jK9" * 20 + " bob"
    assert redact(public) == Redaction(public, {})


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


def test_a_label_within_a_sensitive_field_makes_nothing_else_of_it() -> None:
    given = {"password": {"label": "Phone", "text": "hunter22"}}
    assert redact(given).value["password"]["text"] == "[REDACTED:password]"
    given = {"password": {"id": "{'password': 'hunter22', 'tax id': 1}", "content": "@maria.lopez"}}
    clean = redact(given).value
    assert redact(clean) == Redaction(clean, {})
    assert json.loads(redact(json.dumps(given)).value) == clean
