"""Every row of the table of identifiers: with its labels, without them, and look-alikes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kp_langchain.redaction import redact
from kp_langchain.redaction.tables import load_table
from tests.redaction.labelled_cases import LABELLED, OTHER_FIELDS, OTHER_NUMBERS

ROWS = [row for row in load_table("identifiers")["identifier"] if row["kind"] != "none"]
WITH_BARE = [row for row in ROWS if "bare" in row]

# How people write a label and its number: `L` and `V`.
WRITTEN = (
    "L: V",
    "L V",
    "L=V",
    "L no. V",
    "L number: V",
    "my L number is V.",
    "The L number for Jane Roe is: V",
    "L #V",
    "L (as registered): V",
    "**L:** V",
    "| L | V |",
    "<td>L</td><td>V</td>",
    "L:\n  V",
    "{'L': 'V'}",
    "2026-02-03 10:15:22 INFO L=V status=ok",
)
NUMBERED = ("L no. V", "L number: V", "L #V", "my L number is V.")


ANNOUNCED = tuple(text for text in WRITTEN if text not in ("L V", "| L | V |", "{'L': 'V'}"))


def _labels(row: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (
            label.rstrip("#?= "),
            {"#": NUMBERED, "?": ANNOUNCED, "=": ("L=V",)}.get(label[-1], WRITTEN),
        )
        for label in row["labels"]
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_number_after_each_of_its_labels_goes(row: dict[str, Any]) -> None:
    left = []
    for label, templates in _labels(row):
        for template in templates:
            if not label.isascii() and "number" in template:
                continue
            is_name = label[0].isalpha() and not row.get("only_in_text")
            if template.startswith("{") and not is_name:
                continue
            text = template.replace("L", label).replace("V", row["example"])
            result = redact(text)
            if row["example"] in result.value:
                left.append(text)
    assert left == []


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "bare" not in row], ids=lambda row: row["name"]
)
def test_a_value_without_the_form_stays_after_its_label(row: dict[str, Any]) -> None:
    label = row["labels"][0].rstrip("#?= ")
    for template in ("L: V", "L number: V", "the L is V"):
        text = template.replace("L", label).replace("V", row["other"])
        assert redact(text).value == text


@pytest.mark.parametrize("row", WITH_BARE, ids=lambda row: row["name"])
def test_a_number_that_its_check_digits_prove_needs_no_label(row: dict[str, Any]) -> None:
    for text in ("V", "Found V, going on.", "(V)", "a,V,b", "id\tV\tx"):
        result = redact(text.replace("V", row["example"]))
        assert result.value == text.replace("V", f"[REDACTED:{row['kind']}]")
        changed = text.replace("V", row["other"])
        assert redact(changed).value == changed


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("AB123456C is my National Insurance number", "is my National Insurance number"),
        ("78051201234 (PESEL)", "(PESEL)"),
        ("DE136695976 is my VAT number", "is my VAT number"),
        ("iban de89370400440532013001 from tomorrow", "from tomorrow"),
        ("dni 12345678z for Jane", "for Jane"),
        ("VAT number DE136695976 is mine", "is mine"),
        ("PAYMENT TO IBAN DE89370400440532013001 PAID TODAY", "PAID TODAY"),
    ],
)
def test_only_the_number_goes(text: str, rest: str) -> None:
    result = redact(text)
    assert sum(result.counts.values()) == 1
    assert rest in result.value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_dict_key_labels_its_value(row: dict[str, Any]) -> None:
    if row.get("only_in_text"):
        return
    name = re.sub(r"\W+", "_", row["labels"][0].rstrip("#?= ")) + "_number"
    value = {name: row["example"], "city": "Rome"}
    assert row["example"] not in str(redact(value).value)
    assert redact(json.dumps(value)).value != json.dumps(value)


@pytest.mark.parametrize(("text", "number"), LABELLED)
def test_a_labelled_number_goes(text: str, number: str) -> None:
    for given in (text, {"content": text}, json.dumps({"content": text})):
        assert number not in str(redact(given).value)


@pytest.mark.parametrize("text", OTHER_NUMBERS)
def test_other_numbers_stay(text: str) -> None:
    for given in (text, {"content": text}, json.dumps({"content": text})):
        assert redact(given).value == given


@pytest.mark.parametrize("fields", OTHER_FIELDS)
def test_other_fields_stay(fields: dict[str, Any]) -> None:
    assert redact(fields).value == fields


EMAIL_LIKE = (
    {"to": "@maria.lopez"},
    {"text": "line one\n@app.route('/x')\n@login_required\ndef x(): pass"},
    ["foo", "@types/node", "@angular/core"],
    "@app.route('/login')\ndef login(): ...",
    "systemctl restart getty@tty1.service",
    '<img src="logo@2x.png" srcset="logo@3x.png 3x">',
    "npm i -D @types/node@20.11.5 typescript@5.4.2",
    "/homepage/index.html and /home/envs and /homeassistant/api/states",
    "/users/sign_out and /users/list?page=2",
    "drwxr-xr-x  3 root users 4096 Nov 12 08:00 data",
    "srw-rw----  1 root  docker     0 Mar  3 08:12 docker.sock",
    "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff",
    "uid=0(root) gid=0(root) groups=0(root)",
    "[root@build01 src]# make",
)


@pytest.mark.parametrize("user", ["user", "root", "admin", "mail", "news"])
def test_an_address_goes_whatever_its_user_is_called(user: str) -> None:
    assert redact(f"write to {user}@roe.example").value == "write to [REDACTED:email]"


@pytest.mark.parametrize("given", EMAIL_LIKE)
def test_decorators_handles_routes_and_system_users_stay(given: Any) -> None:
    text = json.dumps(given)
    assert redact(given).value == given
    assert redact(text).value == text
    assert redact("log: " + text).value == "log: " + text


@pytest.mark.parametrize(
    "text",
    [
        "[bwayne@build01 src]$ git status",
        "bwayne@Mac-mini ~ % brew update",
        "┌──(bwayne㉿kali)-[~]",
        "(venv) bwayne@ubuntu:~/app$ python3 run.py",
        "uid=1000(bwayne) gid=1000(bwayne) groups=27(sudo)",
        "-rw-r--r-- 1 bwayne staff 812 Feb  3 10:15 notes.md",
        "/home/bwayne/.venv/bin/python: No module named pytest",
    ],
)
def test_user_names_of_prompts_and_listings_go(text: str) -> None:
    assert "bwayne" not in redact(text).value


def test_a_short_label_of_two_words_is_no_word() -> None:
    assert redact("he said 8001015009087").counts == {}
    assert redact("IdNr. 15 690 437 789").value == "IdNr. [REDACTED:tax_id]"
    assert redact({"said": "8001015009087", "saId": "8001015009087"}).value == {
        "said": "8001015009087",
        "saId": "[REDACTED:tax_id]",
    }
