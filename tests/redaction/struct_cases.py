"""Low-entropy values under telling names, in every structure and notation that carries them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final
from xml.sax.saxutils import escape

_NAMES: Final = (
    "password passwd pwd PASSWORD_PROD userPassword db_password passwordConfirmation passphrase "
    "rootpw storepass smtp_pass DB_PASS ldapBindPassword bindpw wifi_psk secret clientSecret "
    "webhook-secret SECRET_KEY_BASE signingSecret token accessToken refresh_token id-token csrfToken "
    "apiKey API_KEY x-api-key openai_api_key stripeSecretKey private_key sshPrivateKey access_key "
    "encryption_key masterKey credential credentials db_creds auth authorization X-Auth-Token "
    "cookie sessionId JSESSIONID session_token otp totpCode one_time_password two_factor_code "
    "verificationCode backup_codes recovery_code security_answer access_code "
    "mnemonic seed_phrase connect_token passwort senha contrasena"
).split()
_VALUES: Final = (
    "swordfish7",
    "open-sesame-9",
    "hunter22",
    "Tr0ub4dor&3",
    "letmein!1",
    "p@ss:w0rd",
)
_NUMERIC: Final = ("pin", "cvv", "otp", "card_cvc", "pinCode", "security_code", "mfa_code")

_SHAPES: Final[tuple[tuple[str, Callable[[str, str], Any]], ...]] = (
    ("mapping", lambda n, v: {"user": "bob", n: v}),
    ("nested", lambda n, v: {"calls": [{"cfg": {"db": {n: v}}}, 7]}),
    ("tuple", lambda n, v: ("login", {n: v}, 3)),
    ("list value", lambda n, v: {n: [v, v + "x"]}),
    ("pairs", lambda n, v: [(n, v), ("accept", "*/*")]),
    ("pair lists", lambda n, v: {"headers": [[n, v], ["accept", "*/*"]]}),
    ("named", lambda n, v: {"headers": [{"name": n, "value": v}]}),
    ("arguments", lambda n, v: ["tool", f"--{n}", v, "--verbose"]),
    ("bytes", lambda n, v: {n.encode(): v.encode()}),
    ("JSON", lambda n, v: json.dumps({"user": "bob", n: v, "n": 2})),
    ("JSON in JSON", lambda n, v: json.dumps({"arguments": json.dumps({"h": {n: v}})})),
    ("JSON thrice", lambda n, v: json.dumps([json.dumps({"a": json.dumps({n: v})})])),
    ("repr", lambda n, v: f"KeyError while handling {({'user': 'bob', n: v})!r}"),
    ("keyword", lambda n, v: f"connect(user='bob', {n}={v!r}, port=1)"),
    ("environment", lambda n, v: f"HOST=db1\n{n}={v}\nPORT=1"),
    ("colon", lambda n, v: f"db:\n  host: db1\n  {n}: {v}\n  port: 1\n"),
    ("toml", lambda n, v: f'[db]\n{n} = "{v}"\n'),
    ("flag", lambda n, v: f"$ tool --user bob --{n} '{v}' --verbose"),
    ("flag with sign", lambda n, v: f"$ tool --{n}={v} --verbose"),
    ("element", lambda n, v: f"<c><{n}>{escape(v)}</{n}></c>"),
    ("attribute", lambda n, v: f'<c user="bob" {n}="{escape(v)}"/>'),
    ("query", lambda n, v: f"https://a.io/x?u=1&{n}={v.replace('&', '%26')}&n=2"),
    ("header", lambda n, v: f"GET / HTTP/1.1\r\nHost: a.io\r\n{n}: {v}\r\n\r\n"),
    ("table", lambda n, v: f"| user | bob |\n| {n} | {v} |\n"),
    ("log", lambda n, v: f'time=1 level=info {n}="{v}" msg=ok'),
    ("selector", lambda n, v: {"selector": f"#{n}", "text": v}),
    ("element", lambda n, v: {"action": "fill", "element": f"{n} field", "value": v}),
    ("attribute selector", lambda n, v: {"target": f"input[name='{n}']", "text": v, "n": 1}),
    ("key and value", lambda n, v: {"Key": n, "Value": v}),
    ("form", lambda n, v: {"fields": [{"label": n, "type": "textbox", "value": v}]}),
    ("columns", lambda n, v: {"columns": ["id", n], "rows": [[1, v], [2, None]]}),
    ("headers", lambda n, v: {"headers": ["id", n, "day"], "data": [("a", v, "Monday")]}),
    ("named columns", lambda n, v: {"fields": [{"name": "id"}, {"name": n}], "rows": [[7, v]]}),
    ("rows", lambda n, v: [["id", n, "day"], ["a", v, "Monday"], ["b", "", "Friday"]]),
    ("two columns", lambda n, v: [("user", n), ("bob", v)]),
    ("csv", lambda n, v: f"id,{n},day\n1,{v},Monday\n2,,Friday\n"),
    ("quoted csv", lambda n, v: f'"id","{n}"\n"1","{v}"\n'),
    ("semicolons", lambda n, v: f"Export:\n\nid;{n};day\n1;{v};Monday\n"),
    ("tabs", lambda n, v: f"id\t{n}\n1\t{v}\n"),
    ("markdown", lambda n, v: f"| id | {n} |\n|:---|---:|\n| 1 | `{v}` |\n"),
    ("psql", lambda n, v: f" id | {n} \n----+-----\n  1 | {v}\n(1 row)\n"),
    ("mysql", lambda n, v: f"+--+--+\n| id | {n} |\n+--+--+\n| 1 | {v} |\n+--+--+\n"),
    ("box", lambda n, v: f"┌──┬──┐\n│ id │ {n} │\n├──┼──┤\n│ 1 │ {v} │\n└──┴──┘"),
    ("fixed width", lambda n, v: f"{'ID':8}{n.upper() if n.islower() else n:24}AGE\n{'api':8}{v:24}3d\n"),
    ("html", lambda n, v: f"<tr><th>id</th><th>{n}</th></tr><tr><td>1</td><td>{escape(v)}</td></tr>"),
    ("names and values", lambda n, v: f"| Name | Value |\n|---|---|\n| {n} | {v} |\n"),
    ("literal newline", lambda n, v: f"a=1\\n{n}={v}\\nb=2"),
)  # fmt: skip


def _made() -> list[tuple[str, Any, str]]:
    source = random.Random(25)
    cases: list[tuple[str, Any, str]] = []
    for name in _NAMES:
        for shape, make in _SHAPES:
            value = source.choice(_VALUES)
            cases.append((shape, make(name, value), value))
    for name in _NUMERIC:
        for shape, make in _SHAPES:
            value = str(source.randrange(1000, 9999))
            cases.append((shape, make(name, value), value))
        number = source.randrange(1000, 9999)
        cases.append(("number", {"args": {name: number}}, str(number)))
    return cases


STRUCT: Final = _made()
