from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from kp_langchain.redaction import redact
from tests.redaction.cases import (
    BENIGN,
    IDENTIFIERS,
    LOOKALIKES,
    SECRETS,
    STRUCT,
    left_over,
)

_WANTED = {"secret": 0.97, "structure": 0.97, "identifier": 0.95}


def _by_family(cases: list[tuple[Any, ...]]) -> list[Any]:
    families: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for family, *case in cases:
        families[family].append(tuple(case))
    return [pytest.param(rows, id=family) for family, rows in families.items()]


def _assert_gone(rows: list[tuple[Any, str]], kind: str, level: str) -> None:
    left = []
    for given, secret in rows:
        result = redact(given, level=level)
        if left_over(secret, result.value) or not result.counts:
            left.append((given, result.value))
    # One in five of a small family may be of a writing that is not known.
    allowed = max(len(rows) * (1 - _WANTED[kind]), len(rows) * 0.2 if len(rows) < 40 else 0)
    assert len(left) <= allowed, left[:5]


@pytest.mark.parametrize("rows", _by_family(SECRETS))
def test_secrets_are_gone_at_every_level(rows: list[tuple[Any, str]]) -> None:
    _assert_gone(rows, "secret", "private")
    _assert_gone(rows, "secret", "aggregated")


@pytest.mark.parametrize("rows", _by_family(STRUCT))
def test_values_under_telling_names_are_gone(rows: list[tuple[Any, str]]) -> None:
    _assert_gone(rows, "structure", "private")


@pytest.mark.parametrize("rows", _by_family(IDENTIFIERS))
def test_identifiers_are_gone(rows: list[tuple[Any, str]]) -> None:
    _assert_gone(rows, "identifier", "aggregated")


@pytest.mark.parametrize("rows", [*_by_family(LOOKALIKES), *_by_family(BENIGN)])
def test_nothing_else_is_touched(rows: list[tuple[Any]]) -> None:
    for (given,) in rows:
        result = redact(given)
        assert result.value == given
        assert result.counts == {}


@pytest.mark.parametrize(
    ("cases", "wanted"),
    [(SECRETS, 0.99), (STRUCT, 0.99), (IDENTIFIERS, 0.99)],
    ids=["secrets", "structures", "identifiers"],
)
def test_hardly_any_case_of_all_is_missed(cases: list[tuple[str, Any, str]], wanted: float) -> None:
    found = sum(not left_over(secret, redact(given).value) for _, given, secret in cases)
    assert len(cases) > 500
    assert found / len(cases) >= wanted
