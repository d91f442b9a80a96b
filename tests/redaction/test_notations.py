from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kp_langchain.redaction import redact
from tests.redaction.cases import left_over
from tests.redaction.drawn import compose
from tests.redaction.notation_cases import FOUND, IN_PARTS, KEPT


@pytest.mark.parametrize("template", [text for texts in FOUND.values() for text in texts])
def test_a_value_next_to_its_name_goes(template: str) -> None:
    source = random.Random(61)
    for _ in range(4):
        text, secret = compose(template, source)
        for value in (text, {"content": text}, json.dumps({"content": text})):
            clean = redact(value, level="private").value
            assert not left_over(secret, clean), value
            assert redact(clean, level="private").value == clean


@pytest.mark.parametrize("value", KEPT, ids=str)
def test_what_looks_like_a_name_and_its_value_stays(value: Any) -> None:
    assert redact(value).value == value


@pytest.mark.parametrize(("text", "clean"), IN_PARTS)
def test_only_the_value_goes_and_all_of_it(text: Any, clean: Any) -> None:
    assert redact(text).value == clean
    assert redact(clean).value == clean


def test_pairs_of_keys_with_one_stem_are_names_and_values() -> None:
    for key, value in (("ParameterKey", "ParameterValue"), ("option_name", "option_value")):
        record = {"items": [{key: "Size", value: "t3"}, {key: "DBPassword", value: "hunter22"}]}
        clean = redact(record).value["items"]
        assert clean == [record["items"][0], {key: "DBPassword", value: "[REDACTED:password]"}]
