"""Namespaces: whose traces a run is shown, and who is shown what it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda

from kp_langchain import ConfigError, KPExampleSelector, KPRetriever, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel
from kp_langchain.run_keys import RunKeys
from tests.commands import write_trusted
from tests.recall.words import (
    EURO,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    kept_handler,
    middleware,
    rates,
    texts,
)

PAIRS = '[["kp_namespace", "acme"], ["user_id", "ann"]]'


class Tenant(Enum):
    A = "tenant-a"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "kp.db") as store:
        yield store


def is_shown(store: TraceStore, **metadata: Any) -> bool:
    """Return whether a run with these metadata is shown an example."""
    model = Listening(answers(), asked=[])
    agent = create_agent(model, [rates], middleware=[middleware(store)])
    config: Any = {"metadata": metadata}
    agent.invoke({"messages": [("user", EURO)]}, config)
    return any("earlier runs" in text for text in texts(model.asked[0]))


class TestUnusable:
    @pytest.mark.parametrize(
        "value", ["", " \n", b"tenant-a", 7.0, Decimal(7), Tenant.A, ("a",), True, {}, object()]
    )
    def test_it_is_shared_with_nobody(
        self, store: TraceStore, value: object, caplog: pytest.LogCaptureFixture
    ) -> None:
        keep(store, metadata={"kp_namespace": value})
        (stored,) = store.runs()
        assert stored.namespace is not None
        assert stored.namespace.startswith("unknown:")
        assert not is_shown(store)
        assert not is_shown(store, kp_namespace="tenant-a")
        assert not is_shown(store, kp_namespace=value)
        (warning,) = [one for one in caplog.messages if "kp_namespace" in one]
        assert "tenant-a" not in warning

    def test_a_run_with_one_is_shown_only_what_all_are_shown(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        assert not is_shown(store, kp_namespace=b"tenant-a")
        keep(store, EURO.replace("euro", "yen"), "JPYUSD")
        assert is_shown(store, kp_namespace=b"tenant-a")

    def test_none_names_no_namespace(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": None})
        assert [run.namespace for run in store.runs()] == [None]
        assert is_shown(store, kp_namespace="tenant-a")


class TestSeveralKeys:
    @pytest.fixture(autouse=True)
    def settings(self) -> None:
        write_trusted('[run_keys]\nnamespace = ["kp_namespace", "user_id"]')

    def test_they_keep_the_users_of_one_tenant_apart(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "acme", "user_id": "ann"})
        assert is_shown(store, kp_namespace="acme", user_id="ann")
        for metadata in (
            {"kp_namespace": "acme", "user_id": "ben"},
            {"kp_namespace": "corp", "user_id": "ann"},
            {"kp_namespace": "ann", "user_id": "acme"},
            {"kp_namespace": "acme"},
            {"user_id": "ann"},
            {"kp_namespace": PAIRS},
            {"kp_namespace": b"acme", "user_id": "ann"},
            {"kp_namespace": "acme", "user_id": b"ann"},
            {},
        ):
            assert not is_shown(store, **metadata)

    def test_they_are_stored_as_one_hash(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "acme", "user_id": "ann"})
        (stored,) = store.runs()
        assert str(stored.namespace).startswith("hash:")
        assert store.runs(namespace=PAIRS) == [stored]

    def test_a_single_one_is_the_namespace_itself(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "acme", "user_id": None})
        assert [run.namespace for run in store.runs()] == ["acme"]
        assert is_shown(store, kp_namespace="acme")
        assert not is_shown(store, kp_namespace="acme", user_id="ann")

    @pytest.mark.parametrize("unusable", ["kp_namespace", "user_id"])
    def test_an_unusable_one_makes_all_unusable(self, store: TraceStore, unusable: str) -> None:
        keep(store, metadata={"kp_namespace": "acme", "user_id": "ann"} | {unusable: 7.0})
        assert [str(run.namespace)[:8] for run in store.runs()] == ["unknown:"]

    def test_a_single_value_that_looks_like_several(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": PAIRS})
        assert is_shown(store, kp_namespace=PAIRS)
        assert not is_shown(store, kp_namespace="acme", user_id="ann")


class TestLong:
    LONG = "acme" * 50_000

    @pytest.mark.parametrize("keys", [["kp_namespace"], ["kp_namespace", "user_id"]])
    def test_what_begins_alike_is_no_less_apart(self, store: TraceStore, keys: list[str]) -> None:
        write_trusted(f"[run_keys]\nnamespace = {keys}")
        user = {"user_id": "ann"} if len(keys) > 1 else {}
        keep(store, metadata={"kp_namespace": f"{self.LONG}1", **user})
        assert [str(run.namespace)[:5] for run in store.runs()] == ["hash:"]
        assert is_shown(store, kp_namespace=f" {self.LONG}1 ", **user)
        assert not is_shown(store, kp_namespace=f"{self.LONG}2", **user)
        assert not is_shown(store, kp_namespace=self.LONG, **user)
        assert not is_shown(store, kp_namespace=self.LONG[:100_000], **user)

    def test_a_large_number(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": 1 << 500_000})
        assert is_shown(store, kp_namespace=1 << 500_000)
        assert not is_shown(store, kp_namespace=(1 << 500_000) + 1)

    def test_it_is_found_by_its_name(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": f"{self.LONG}1"})
        assert store.count(namespace=f"{self.LONG}1") == 1
        assert store.count(namespace=f"{self.LONG}2") == 0


class TestForms:
    @pytest.mark.parametrize("value", ["ann@example.org", b"unusable"])
    def test_the_stored_form_of_another_opens_nothing(
        self, store: TraceStore, value: object
    ) -> None:
        kept = keep(store, metadata={"kp_namespace": value})
        (stored,) = store.runs()
        form = str(stored.namespace)
        assert re.fullmatch("(hash|unknown):[0-9a-f]{32}", form)
        assert [run.trace_id for run in store.runs(namespace=form)] == [kept]
        assert not is_shown(store, kp_namespace=form)
        assert not found(KPRetriever("finance", namespace=form, **options(store)))

    @pytest.mark.parametrize("value", ["hash:" + "0" * 32, "unknown:" + "0" * 32])
    def test_a_name_that_looks_like_a_stored_form_is_hashed(
        self, store: TraceStore, value: str
    ) -> None:
        keep(store, metadata={"kp_namespace": value})
        (stored,) = store.runs()
        assert str(stored.namespace).startswith("hash:")
        assert stored.namespace != value
        assert is_shown(store, kp_namespace=value)

    def test_what_a_redactor_hides_is_found_all_the_same(self, store: TraceStore) -> None:
        watching = kept_handler(store, redactor=lambda text: text.replace("acme", "[gone]"))
        agent = create_agent(ScriptedChatModel(answers()), [rates])
        config: Any = {"callbacks": [watching], "metadata": {"kp_namespace": "acme"}}
        agent.invoke({"messages": [("user", POUND)]}, config)
        assert watching.flush(120)
        assert [str(run.namespace)[:5] for run in store.runs()] == ["hash:"]
        assert is_shown(store, kp_namespace="acme")
        assert not is_shown(store, kp_namespace="corp")


class TestArgument:
    @pytest.mark.parametrize("kind", [KPRetriever, KPExampleSelector])
    @pytest.mark.parametrize("value", ["tenant-a", " tenant-a ", 7, UUID(int=7)])
    def test_text_integer_and_uuid(self, store: TraceStore, kind: Any, value: Any) -> None:
        keep(store, metadata={"kp_namespace": value})
        assert found(kind("finance", namespace=value, **options(store)))
        assert not found(kind("finance", namespace="tenant-b", **options(store)))

    @pytest.mark.parametrize("kind", [KPRetriever, KPExampleSelector])
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"tenant-a", "namespace of type bytes"),
            (7.0, "namespace of type float"),
            (True, "namespace of type bool"),
            (["a"], "namespace of type list"),
            ("", "namespace='' is empty"),
            (" ", "namespace=' ' is empty"),
        ],
    )
    def test_others_are_refused(
        self, store: TraceStore, kind: Any, value: Any, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message) as refused:
            kind("finance", namespace=value, **options(store))
        assert "tenant-a" not in str(refused.value)

    @pytest.mark.parametrize("kind", [KPRetriever, KPExampleSelector])
    def test_it_is_one_value_however_it_looks(self, store: TraceStore, kind: Any) -> None:
        write_trusted('[run_keys]\nnamespace = ["kp_namespace", "user_id"]')
        keep(store, metadata={"kp_namespace": "acme", "user_id": "ann"})
        assert not found(kind("finance", namespace=PAIRS, **options(store)))
        keep(store, EURO.replace("euro", "yen"), "JPYUSD", metadata={"kp_namespace": PAIRS})
        assert found(kind("finance", namespace=PAIRS, **options(store)))


def options(store: TraceStore) -> dict[str, Any]:
    return {"store": store, "embedder": Words(), "floor": 0.5}


def found(examples: KPRetriever | KPExampleSelector) -> bool:
    if isinstance(examples, KPRetriever):
        return bool(examples.invoke(EURO))
    return bool(examples.select_examples({"task": EURO}))


class TestWhoseARunIs:
    def test_a_user_alone_is_kept_as_a_hash(self, store: TraceStore, folder: Path) -> None:
        write_trusted('[run_keys]\nnamespace = ["kp_namespace", "user_id"]')
        keep(store, metadata={"user_id": "ann"})
        (stored,) = store.runs()
        assert stored.namespace is not None
        assert stored.namespace.startswith("hash:")
        assert is_shown(store, user_id="ann")
        assert not is_shown(store, kp_namespace="ann")
        assert not is_shown(store, user_id="ben")

    def test_the_same_run_of_two_tenants_is_kept_for_both(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "a"})
        keep(store, metadata={"kp_namespace": "b"})
        keep(store)
        assert {one.namespace for one in store.runs()} == {"a", "b", None}
        assert {one.decision for one in store.runs()} == {"contributed"}

    def test_a_run_whose_parts_are_of_two_is_nobodys(self) -> None:
        first, second = RunKeys(namespace="a"), RunKeys(namespace="b")
        assert second.after(RunKeys()).namespace == "b"
        assert RunKeys().after(first).namespace == "a"
        assert re.fullmatch("unknown:[0-9a-f]{32}", second.after(first).namespace or "")

    def test_values_that_cannot_be_compared_are_of_nobody(self, store: TraceStore) -> None:
        watching = kept_handler(store)
        agent = create_agent(ScriptedChatModel(answers()), [rates])
        inner = {"metadata": {"kp_namespace": np.array([1, 2, 3])}}
        outer = RunnableLambda(lambda task: agent.invoke(task, inner))
        outer.invoke(
            {"messages": [("user", POUND)]},
            {"callbacks": [watching], "metadata": {"kp_namespace": np.array([1, 2])}},
        )
        assert watching.last(120) is not None
        assert watching.stats()["callback_errors"] == 0
        model = Listening(answers(), asked=[])
        create_agent(model, [rates], middleware=[middleware(store)]).invoke(
            {"messages": [("user", EURO)]}
        )
        assert not any("earlier runs" in text for text in texts(model.asked[0]))


class TestAgentsInsideOthers:
    """Whose a run is, where only what is inside it says so."""

    @pytest.fixture(params=["attached", "callbacks of the agent", "callbacks of the chain"])
    def way(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def play(self, store: TraceStore, way: str, *tenants: str, outer: Any = None) -> list[Any]:
        watching = kept_handler(store)
        shows = [middleware(store, handler=watching)] if way == "attached" else []
        own = [watching] if way == "callbacks of the agent" else []

        def ask(_: Any) -> str:
            for tenant in tenants:
                agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=shows)
                config: Any = {"metadata": {"kp_namespace": tenant}, "callbacks": own}
                agent.invoke(
                    {"messages": [("user", POUND)]}, {k: v for k, v in config.items() if v}
                )
            return "done"

        config = {"callbacks": [watching]} if way == "callbacks of the chain" else {}
        RunnableLambda(ask).invoke("ask", {**config, "metadata": outer or {}})
        assert watching.flush(120)
        return [one.namespace for one in store.runs()]

    def test_an_agent_in_a_chain(self, store: TraceStore, way: str) -> None:
        assert self.play(store, way, "tenant-a") == ["tenant-a"]
        assert not is_shown(store)
        assert not is_shown(store, kp_namespace="tenant-b")

    def test_two_tenants_in_one_chain(self, store: TraceStore, way: str) -> None:
        namespaces = self.play(store, way, "tenant-a", "tenant-b")
        if way == "callbacks of the chain":
            assert [one.startswith("unknown:") for one in namespaces] == [True]
        else:
            assert sorted(namespaces) == ["tenant-a", "tenant-b"]
        assert not is_shown(store)

    def test_an_agent_of_another_tenant(self, store: TraceStore, way: str) -> None:
        (namespace,) = self.play(store, way, "tenant-a", outer={"kp_namespace": "tenant-b"})
        assert namespace == "tenant-a" or namespace.startswith("unknown:")
        assert not is_shown(store, kp_namespace="tenant-b")
