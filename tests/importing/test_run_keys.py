"""The keys of imported runs: namespace, session, thread, user and tags, from each kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kp_langchain.run_keys import RunKeys
from tests.agents import ASK, handler, searching
from tests.importing.compared import import_values
from tests.importing.test_conventions import MESSAGES, genai_spans, import_one, lines, span
from tests.importing.ways import traced

KEYS = {"kp_namespace": "acme", "session_id": "s-1", "thread_id": "t-1", "user_id": "ann"}
TAGS = ["beta", "both"]


def recorded(**config: Any) -> RunKeys:
    """The keys that the handler stores of a run with this config."""
    watching = handler()
    searching().invoke(ASK, {"callbacks": [watching], **config})
    scored = watching.last(600)
    assert scored is not None
    assert scored.keys is not None
    return scored.keys


def imported(values: list[Any], folder: Path) -> RunKeys:
    keys = import_one(values, folder).keys
    assert keys is not None
    return keys


@pytest.mark.parametrize("name", ["langsmith", "openinference", "genai"])
def test_they_are_those_that_the_handler_stores(name: str, tmp_path: Path) -> None:
    with traced() as files:
        expected = recorded(metadata=KEYS, tags=TAGS, run_name="desk")
    keys = imported(getattr(files, name), tmp_path)
    assert (keys.namespace, keys.session, keys.thread) == ("acme", "s-1", "t-1")
    assert (keys.user, keys.name) == (expected.user, "desk")
    if name != "openinference":  # its tracer does not write them
        assert sorted(keys.tags) == TAGS


@pytest.mark.parametrize("name", ["langsmith", "openinference", "genai"])
def test_a_thread_is_no_session(name: str, tmp_path: Path) -> None:
    with traced() as files:
        recorded(metadata={"thread_id": "t-1"})
    keys = imported(getattr(files, name), tmp_path)
    assert (keys.session, keys.thread) == (None, "t-1")


@pytest.mark.parametrize("where", ["", "metadata", "metadata as text"])
def test_those_of_a_line_of_messages(where: str, tmp_path: Path) -> None:
    named = {**KEYS, "tags": TAGS, "name": "desk", "kp_domain": "finance"}
    inner: dict[str, Any] = {"metadata": json.dumps(named) if "text" in where else named}
    scored = import_one([{"messages": MESSAGES, **(inner if where else named)}], tmp_path)
    expected = recorded(metadata=KEYS, tags=TAGS, run_name="desk")
    assert scored.keys == expected
    assert scored.trace.metadata.task_domain == "finance"


def test_a_name_that_the_settings_give_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_RUN_KEYS__NAMESPACE", '["tenant", "unit"]')
    line = {"messages": MESSAGES, "tenant": "ann@acme.example", "metadata": {"unit": 7}}
    keys = imported([line], tmp_path)
    assert keys.namespace == recorded(metadata={"tenant": "ann@acme.example", "unit": 7}).namespace
    assert str(keys.namespace).startswith("hash:")


@pytest.mark.parametrize("value", ["", True, ["a"], {"a": 1}])
def test_an_unusable_namespace_is_shared_with_nobody(value: Any, tmp_path: Path) -> None:
    keys = imported([{"messages": MESSAGES, "kp_namespace": value}], tmp_path)
    assert str(keys.namespace).startswith("unknown:")


def test_none_is_none(tmp_path: Path) -> None:
    line = {"messages": MESSAGES, "kp_namespace": "acme", "metadata": {"kp_namespace": None}}
    assert imported([line], tmp_path).namespace == "acme"
    del line["kp_namespace"]
    assert imported([line | {"id": 2}], tmp_path).namespace is None


def test_one_id_in_two_namespaces_is_that_of_two_runs(tmp_path: Path) -> None:
    line = {"id": 1, "messages": MESSAGES}
    values = [line | {"kp_namespace": one} for one in ("a", "b", "a")]
    fates = [one.fate for one in import_values([*values, line], tmp_path)]
    assert fates == ["imported", "imported", "known", "imported"]


class TestSpans:
    @pytest.mark.parametrize(
        "attributes",
        [
            {"kp_namespace": "acme", "session_id": "s-1", "user_id": "ann"},
            {
                "traceloop.association.properties.kp_namespace": "acme",
                "traceloop.association.properties.session_id": "s-1",
                "traceloop.association.properties.user_id": "ann",
            },
            {"kp_namespace": "acme", "gen_ai.conversation.id": "s-1", "enduser.id": "ann"},
            {"kp_namespace": "acme", "session.id": "s-1", "user.id": "ann"},
        ],
    )
    def test_attributes_of_their_own(self, attributes: dict[str, str], tmp_path: Path) -> None:
        root, *others = genai_spans()
        more = span(1, 9, 0, 100, having=attributes)["attributes"]
        root["attributes"] = [*root["attributes"], *more]
        keys = imported(lines(root, *others), tmp_path)
        assert (keys.namespace, keys.session) == ("acme", "s-1")
        assert keys.user == recorded(metadata={"user_id": "ann"}).user

    def test_tags_of_openinference(self, tmp_path: Path) -> None:
        attributes = {
            "openinference.span.kind": "LLM",
            "input.value": "a",
            "output.value": "b",
        }
        one = span(1, 0, 0, 1, having=attributes)
        tags = [{"stringValue": tag} for tag in TAGS]
        one["attributes"].append({"key": "tag.tags", "value": {"arrayValue": {"values": tags}}})
        assert list(imported(lines(one), tmp_path).tags) == TAGS
