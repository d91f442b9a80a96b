"""The examples of each row of the tables: what it finds, and what it keeps."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kp_langchain.redaction import redact
from kp_langchain.redaction.tables import load_table
from tests.redaction.cases import left_over
from tests.redaction.drawn import compose, fill

_AROUND = ("I called it with {} and got 401.", "x={}", "型号{}无效。", "one\\n{}\\ntwo")


def _rows() -> list[Any]:
    table = load_table("issuers")
    del table["generic"]
    return [
        pytest.param(kind, row, id=f"{kind}-{(row.get('prefixes') or [row.get('pattern')])[0]}")
        for kind, rows in table.items()
        for row in rows
    ]


def _drawn(row: dict[str, Any], key: str) -> list[str]:
    """Each example of a row with each of its prefixes, drawn without any care for digits."""
    source = random.Random(51)
    return [
        fill(example.replace("{p}", prefix), source, with_digits=False)
        for example in row[key]
        for prefix in row.get("prefixes", [""])
        for _ in range(3)
    ]


def _texts(example: str) -> list[str]:
    return [
        *(around.replace("{}", example) for around in _AROUND),
        json.dumps({"note": f"see {example}", "n": 1}),
        json.dumps({"args": json.dumps({"note": example})}),
    ]


@pytest.mark.parametrize(("kind", "row"), _rows())
def test_the_examples_of_a_row_are_found_as_its_kind(kind: str, row: dict[str, Any]) -> None:
    for example in _drawn(row, "finds"):
        for text in _texts(example):
            result = redact(text, level="private")
            assert result.counts == {kind: 1}, text
            assert not left_over(example, result.value)


@pytest.mark.parametrize(("kind", "row"), _rows())
def test_the_other_examples_of_a_row_stay(kind: str, row: dict[str, Any]) -> None:
    for example in _drawn(row, "keeps"):
        for text in _texts(example):
            assert redact(text, level="private").value == text


def _command_rows() -> list[Any]:
    return [
        pytest.param(row, id=row["pattern"].partition(" ")[0])
        for row in load_table("commands")["command"]
    ]


@pytest.mark.parametrize("row", _command_rows())
def test_the_secret_of_each_command_is_found_and_nothing_else(row: dict[str, Any]) -> None:
    source = random.Random(52)
    for template in row["finds"] * 4:
        command, secret = compose(template, source)
        for text in _with_commands(command):
            result = redact(text, level="private")
            assert sum(result.counts.values()) == 1, text
            assert not left_over(secret, result.value), text
    for command in row["keeps"]:
        for text in _with_commands(command):
            assert redact(text, level="private").value == text


def _with_commands(command: str) -> list[str]:
    return [command, f"$ {command}\nok", json.dumps({"cmd": f"cd /srv && {command}"})]


_IDENTIFIERS = load_table("identifiers")


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        pytest.param(row["kind"], row, id=f"{row['kind']}-{row['finds'][0]}")
        for row in _IDENTIFIERS["shape"] + _IDENTIFIERS["pattern"]
    ],
)
def test_the_examples_of_an_identifier_are_found_and_the_others_stay(
    kind: str, row: dict[str, Any]
) -> None:
    for example in row["finds"]:
        for text in (
            "{}",
            "It is {} , going on.",
            "<td>{}</td>",
            "one\n{}\ntwo",
            "a,b\n12.00,{},x",
        ):
            assert redact(text.replace("{}", example)).counts == {kind: 1}, text
    for example in row["keeps"]:
        for text in (example, f"one\n{example} \ntwo"):
            assert redact(text).value == text
