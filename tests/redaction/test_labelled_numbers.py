"""Every row of the table of identifiers: with its labels, without them, and look-alikes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kp_langchain.redaction import redact
from kp_langchain.redaction.tables import load_table

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
        (label.rstrip("#? "), {"#": NUMBERED, "?": ANNOUNCED}.get(label[-1], WRITTEN))
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
    label = row["labels"][0].rstrip("#? ")
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
    name = re.sub(r"\W+", "_", row["labels"][0].rstrip("#? ")) + "_number"
    value = {name: row["example"], "city": "Rome"}
    assert row["example"] not in str(redact(value).value)
    assert redact(json.dumps(value)).value != json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "order number 12345678, tracking number 1Z999AA10123456784",
        "invoice no. 2024-001234",
        "account 12345 was closed on 2024-01-05",
        "the account was opened on 2022-02-12 with 1500.00",
        "customer 482133 and client 12",
        "sin(123456789) + tan(123456789)",
        "PAN: 30 degrees, tilt 12345678 steps",
        "My 12345678901 points",
        "passport expires 2031-01-05",
        "social security benefits of 2024: 500000",
        "tax 2024: 12345.67",
        "iPhone 13/12/11 case",
        "iPhone 15 123456",
        "Call 3 of 5 finished after 1761234567890 ns",
        "doi:10.1234/0301-2345678",
        "https://doi.org/10.1016/j.cell.2020.01.021",
        "ISBN 978-3-16-148410-0",
        "EAN 5901487982047",
        "lat 52.520008, lon 13.404954",
        "won 6-4 3-6 7-6 in 2024",
        "part no. 123-456-78, serial 4711-0815-22",
        "opencv-python 4.10.0.84 numpy-1.26.4.1",
        "upgraded libssl from 1.2.3.4 to 1.2.3.5",
        "gpg: key 4AEE18F83AFDEB23 4096R/3AFDEB23",
        "commit 12345678 on 2024-01-05 at 12:34:56",
        "0 1 2 3 4 5 6 7 8 9 10 11 12",
        "member since 20191231, pass rate 123456",
    ],
)
def test_other_numbers_stay(text: str) -> None:
    for given in (text, {"content": text}, json.dumps({"content": text})):
        assert redact(given).value == given
