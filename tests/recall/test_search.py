"""Kept traces found again: as documents and examples, as the store changes, and for whom."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import (
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from numpy.typing import NDArray

from kp_langchain import ConfigError, DomainPolicy, KPExampleSelector, KPRetriever, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel
from kp_langchain.recall import ExampleSearch, task_index
from kp_langchain.store import recall_tasks
from tests.agents import shape
from tests.recall.words import (
    EURO,
    GARDEN,
    POUND,
    Words,
    answers,
    keep,
    keep_all,
    kept_handler,
    passing_handler,
    rates,
)

YEN = "what is one yen in dollars today"
MOST = DomainPolicy(threshold=1.0)


class Counting(Words):
    """Notes the texts that it embeds."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += texts
        return super().embed(texts)


def retriever(store: TraceStore, **options: Any) -> KPRetriever:
    options = {"embedder": Words(), "floor": 0.5, "limit": 5, **options}
    return KPRetriever(options.pop("domain", "finance"), store=store, **options)


def selector(store: TraceStore, **options: Any) -> KPExampleSelector:
    options = {"embedder": Words(), "floor": 0.5, "limit": 5, **options}
    return KPExampleSelector("finance", store=store, **options)


def found(
    examples: KPRetriever | KPExampleSelector, task: str = EURO, **metadata: Any
) -> list[Any]:
    """What is found for a task, in a run with metadata."""
    if isinstance(examples, KPExampleSelector):
        return examples.select_examples({"task": task})
    return [one.id for one in examples.invoke(task, {"metadata": metadata} if metadata else None)]


class TestRetriever:
    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    def test_documents_are_kept_traces(self, store: TraceStore, how: str) -> None:
        kept, kept_traces = keep(store), retriever(store)
        (document,) = (
            kept_traces.invoke(EURO) if how == "invoke" else asyncio.run(kept_traces.ainvoke(EURO))
        )
        assert POUND in document.page_content
        assert document.metadata["kp_trace_id"] == document.id == kept
        assert document.metadata["trust"] == "own"
        assert 0.5 < document.metadata["similarity"] < 1
        assert kept_traces.invoke(GARDEN) == []

    def test_a_run_notes_what_it_retrieved(self, store: TraceStore) -> None:
        kept = keep(store)
        watching = passing_handler(store)
        chain = (
            {"examples": retriever(store), "task": RunnablePassthrough()}
            | PromptTemplate.from_template("{examples}\n{task}")
            | FakeListChatModel(responses=["One is 1.08."])
        )
        chain.invoke(EURO, {"callbacks": [watching]})
        scored = watching.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]
        assert shape(scored.trace) == ["call KPRetriever", "saw KPRetriever", "thought"]
        assert "GBPUSD" not in scored.trace.model_dump_json()

    def test_unusable_arguments(self, store: TraceStore) -> None:
        for options, message in (
            ({"limit": 0}, "limit=0"), ({"embedder": None}, "embedder is None"),
            ({"floor": 2.0}, "floor=2"),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=message):
                retriever(store, **options)

    @pytest.mark.parametrize("task", ["", "  ", "\x00", "\ud800", "word " * 200_000])
    def test_any_task(self, store: TraceStore, task: str) -> None:
        keep(store)
        assert isinstance(retriever(store).invoke(task), list)


class TestSelector:
    def test_in_a_few_shot_prompt(self, store: TraceStore) -> None:
        kept = keep(store, "what is one {key} pound in dollars today")
        watching = passing_handler(store)
        prompt = FewShotPromptTemplate(
            example_selector=selector(store),
            example_prompt=PromptTemplate.from_template("{task}"),
            suffix="{task} {key}",
            input_variables=["task", "key"],
        )
        assert "one {key} pound" in prompt.format(task=EURO, key="k")  # braces are no template
        chain = prompt | FakeListChatModel(responses=["One is 1.08."])
        chain.invoke({"task": EURO, "key": "k"}, {"callbacks": [watching]})
        scored = watching.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]

    def test_keys_of_an_example_and_of_the_task(self, store: TraceStore) -> None:
        keep(store)
        (example,) = selector(store).select_examples({"task": EURO})
        assert (example["task"], example["answer"]) == (POUND, "One is 1.27.")
        assert "rates" in example["example"]
        inputs: Any = {"other": GARDEN, "wish": EURO}
        for key, number in (("wish", 1), ("other", 0), ("missing", 0)):
            assert len(selector(store, task_key=key).select_examples(inputs)) == number
        with pytest.raises(ConfigError, match="kp-langchain import"):
            selector(store).add_example({"task": "x"})


class TestAsTheStoreChanges:
    def test_what_is_found_at_each_time(self, url: str) -> None:
        with TraceStore(url) as store:
            search = retriever(store, embedder=(counting := Counting()))
            assert found(search) == []
            (one,) = keep_all(store, POUND)
            assert found(search) == [one]
            (two,) = keep_all(store, EURO)
            assert found(search) == [two, one]
            assert counting.texts == [EURO, EURO, POUND, EURO, EURO]  # each task is embedded once
            keep_all(store, POUND, policy=MOST)  # it did not pass
            keep_all(store, POUND, metadata={"kp_domain": "code"})
            assert found(search) == [two, one]
            store.report_outcome(one, success=True)
            with TraceStore(url) as other:  # of another process, say
                again = retriever(other, embedder=(counting := Counting()))
                assert [doc.metadata["trust"] for doc in again.invoke(EURO)] == ["own", "verdict"]
                assert counting.texts == [EURO]
            store.report_outcome(two, success=False)
            assert found(search) == [one]
            store.delete(one)
            assert found(search) == []

    def test_another_embedder_embeds_anew(self, store: TraceStore) -> None:
        class Others(Counting):
            model = "others"

        keep(store)
        found(retriever(store))
        assert len(found(retriever(store, embedder=(others := Others())))) == 1
        assert others.texts == [EURO, POUND]
        assert len(found(retriever(store, embedder=(counting := Counting())))) == 1
        assert counting.texts == [EURO]

    def test_new_rules_for_planted_instructions_look_at_what_is_known_once_more(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = keep(store)
        found(retriever(store))
        monkeypatch.setattr(task_index, "SCAN_VERSION", task_index.SCAN_VERSION + 1)
        assert found(retriever(store, embedder=(counting := Counting()))) == [kept]
        assert counting.texts == [EURO, POUND]

    def test_a_damaged_trace_makes_room_for_another_run_of_its_task(
        self, store: TraceStore, tmp_path: Path
    ) -> None:
        *runs, other = keep_all(
            store, POUND, f"{POUND}!", f"{POUND}?", "what is one franc in pounds"
        )
        search = retriever(store, floor=0.2)
        best, *_ = found(search, POUND)
        with closing(sqlite3.connect(tmp_path / "kp.db")) as connection, connection:
            connection.execute("UPDATE bodies SET trace = '{' WHERE trace_id = ?", (best,))
        shown = found(search, POUND)
        assert shown[0] in {*runs} - {best}
        assert shown[1:] == [other]

    def test_a_store_that_cannot_be_written(
        self, store: TraceStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = keep(store)
        with closing(sqlite3.connect(tmp_path / "kp.db")) as connection, connection:
            connection.execute(
                "CREATE TRIGGER no_more BEFORE INSERT ON vectors WHEN NEW.kind = 'task' "
                "BEGIN SELECT RAISE(FAIL, 'no room'); END"
            )
        assert found(retriever(store)) == [kept]
        assert "cannot be written" in caplog.text

    def test_from_eight_threads(self, store: TraceStore) -> None:
        keep_all(store, *(f"{POUND} {number}" for number in range(20)))
        search, results = retriever(store), list[list[str]]()
        threads = [threading.Thread(target=lambda: results.append(found(search))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [len(one) for one in results] == [5] * 8
        assert len({*map(tuple, results)}) == 1


class TestWhichTasks:
    def test_examples_are_of_different_tasks_however_many_runs_one_has(
        self, store: TraceStore
    ) -> None:
        again = keep_all(store, *(POUND + "!" * at for at in range(30)))
        others = keep_all(store, "what is one yen in pounds", "what is one won in pounds")
        shown = found(retriever(store, floor=0.2), POUND)
        assert shown[0] in again
        assert {*shown[1:]} == {*others}

    def test_what_an_agent_cannot_call_pushes_out_nothing(self, store: TraceStore) -> None:
        @tool
        def weather(town: str) -> str:
            """Return the weather."""
            return "rain"

        keep_all(store, *(f"{EURO} {at}" for at in range(30)), tools=[weather])
        (own,) = keep_all(store, POUND)
        search = ExampleSearch(store, Words())

        def find(task: str, floor: float, name: str) -> Any:
            return search.find(task, domain="finance", floor=floor, tools={name})

        assert [one.trace_id for one in find(EURO, 0.5, "rates").matches] == [own]
        reason = find(EURO, 0.9, "other").reason
        assert reason == "what is similar enough calls tools that the agent lacks"
        assert "nearest task has similarity 0.11" in find(GARDEN, 0.5, "other").reason

    def test_the_same_task_is_told_by_the_embedders_baseline(self, store: TraceStore) -> None:
        class Alike(Words):
            """To it, unrelated texts have similarity 0.7."""

            model, baseline = "alike", 0.7

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                rows = np.hstack([np.ones((len(texts), 1)), super().embed(texts)])
                return np.array(rows * np.sqrt([0.7, *[0.3] * 256]), np.float32)

        keep_all(store, POUND, EURO)  # their similarity is 0.86, their cosine 0.96
        assert len(found(retriever(store, embedder=Alike(), floor=0.2))) == 2

    def test_a_namespace_with_many_runs_pushes_out_no_other(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recall_tasks, "MOST_TASKS", 20)
        tasks = [f"{POUND} for {number} {number}" for number in range(50)]
        small = keep_all(store, *tasks[:4], metadata={"kp_namespace": "small"})
        shared = keep_all(store, *tasks[4:20])
        keep_all(store, *tasks[20:], metadata={"kp_namespace": "large"})
        search = retriever(store, namespace="small", floor=0.0, limit=20)
        assert {*found(search)} == {*small, *shared[-8:]}


def test_tasks_that_the_embedder_refuses_are_tried_again_and_cost_no_later_one(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Limited(Words):
        is_down = True

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.is_down and any("roses" in text for text in texts):
                raise ConnectionError("too many requests")
            return super().embed(texts)

    keep_all(store, POUND, GARDEN)
    search = retriever(store, embedder=(limited := Limited()))
    with pytest.raises(ConnectionError):  # nothing is known yet
        found(search)
    (later,) = keep_all(store, EURO)
    assert [found(search), found(search)] == [[later]] * 2
    assert caplog.text.count("cannot be embedded") == 1
    limited.is_down = False
    assert len(found(search)) == 2


# ------------------------------------------------------------------ whose traces a run is shown

LONG = "acme" * 50_000
NUMBER = 1 << 500_000


def of(*values: Any) -> list[dict[str, Any]]:
    return [{"kp_namespace": value} for value in values]


# Metadata of the kept run; how its namespace is stored; which runs find it, and which do not.
Whose = tuple[dict[str, Any], str, list[dict[str, Any]], list[dict[str, Any]]]
WHOSE: list[Whose] = [
    ({}, "None", [{}, *of("tenant-a", None)], []),
    (*of(None), "None", [{}, *of("tenant-a", None)], []),  # type: ignore[misc]
    (*of("tenant-a"), "tenant-a", of("tenant-a", " tenant-a "), [{}, *of("tenant-b", b"tenant-a")]),
    (*of(7), "7", of(7, "7"), of(7.0, "8")),
    (*of(UUID(int=7)), str(UUID(int=7)), of(UUID(int=7), str(UUID(int=7))), of(UUID(int=8))),
    # What is personal, long, or looks like a stored form is stored as a hash.
    (*of("ann@example.org"), "hash:", of("ann@example.org"), of("ben@example.org")),
    (*of("acme" * 100), "hash:", of(f" {'acme' * 100} "), of("acme" * 101, "acme")),
    *((*of(f"{word}:" + "0" * 32), "hash:", of(f"{word}:" + "0" * 32), [])
      for word in ("hash", "unknown")),
    # What cannot be a namespace is shared with nobody, not even with the same value.
    *((*of(value), "unknown:", [], [{}, *of("tenant-a", value)])
      for value in ("", LONG, NUMBER, b"tenant-a", 7.5, True, {})),
]  # fmt: skip


def kinds_of(whose: Whose) -> str:
    kinds = (f"{name} {type(value).__name__}" for name, value in whose[0].items())
    return f"{', '.join(kinds)} {whose[1]}"


class TestNamespaces:
    @pytest.mark.parametrize("whose", WHOSE, ids=kinds_of)
    def test_whose_traces_are_found(self, store: TraceStore, whose: Whose) -> None:
        metadata, stored, finds, misses = whose
        kept = keep(store, metadata=metadata)
        (run,) = store.runs()
        form = str(run.namespace)
        assert form.startswith(stored)
        assert not any(f"{word}:" + "0" * 32 == form for word in ("hash", "unknown"))
        search = retriever(store)
        assert all(found(search, **one) == [kept] for one in finds)
        assert not any(found(search, **one) for one in misses)
        if form.startswith(("hash:", "unknown:")):  # which opens nothing
            assert re.fullmatch("(hash|unknown):[0-9a-f]{32}", form)
            assert [one.trace_id for one in store.runs(namespace=form)] == [kept]
            assert not found(search, kp_namespace=form)
            assert not found(retriever(store, namespace=form))

    def test_a_run_sees_its_own_and_the_shared_and_a_warning_quotes_nothing(
        self, store: TraceStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = keep(store, metadata={"kp_namespace": "tenant-a"})
        shared = keep(store, YEN)
        search = retriever(store)
        assert {*found(search, kp_namespace="tenant-a")} == {mine, shared}
        assert found(search, kp_namespace="tenant-b") == [shared]
        assert found(search, kp_namespace=b"tenant-a") == [shared]
        keep(store, metadata={"kp_namespace": b"tenant-a"})
        (warning,) = [one for one in caplog.messages if "kp_namespace" in one]
        assert "tenant-a" not in warning

    def test_what_a_redactor_hides_is_found_all_the_same(self, store: TraceStore) -> None:
        hiding: Any = lambda text: text.replace("acme", "[gone]")  # noqa: E731
        keep_all(store, POUND, metadata={"kp_namespace": "acme"}, redactor=hiding)
        assert [str(run.namespace)[:5] for run in store.runs()] == ["hash:"]
        assert found(retriever(store), kp_namespace="acme")
        assert not found(retriever(store), kp_namespace="corp")

    def test_the_same_run_of_two_tenants_is_kept_for_both(self, store: TraceStore) -> None:
        for metadata in ({"kp_namespace": "a"}, {"kp_namespace": "b"}, {}):
            keep(store, metadata=metadata)  # asserts that it is kept
        assert {one.namespace for one in store.runs()} == {"a", "b", None}

    @pytest.mark.parametrize("namespace", [None, "tenant-a"])
    def test_a_trace_with_only_its_secrets_redacted_stays_in_its_namespace(
        self, store: TraceStore, namespace: str | None
    ) -> None:
        policy = DomainPolicy(threshold=0.2, privacy_level="private")
        keep_all(store, POUND, metadata={"kp_namespace": namespace}, policy=policy)
        assert found(retriever(store)) == []
        assert bool(found(retriever(store), kp_namespace="tenant-a")) is bool(namespace)

    def test_a_withheld_trace_is_nobodys(self, store: TraceStore) -> None:
        def fail(text: str) -> str:
            raise ValueError

        watching = kept_handler(store, redactor=fail)
        agent = create_agent(ScriptedChatModel(answers()), [rates])
        agent.invoke({"messages": [("user", POUND)]}, {"callbacks": [watching]})
        assert watching.flush(120)
        assert store.count() == 1
        assert found(retriever(store, floor=0.0)) == []

    @pytest.mark.parametrize("kind", [retriever, selector])
    def test_the_argument_is_one_value(self, store: TraceStore, kind: Any) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        keep(store, metadata={"kp_namespace": "7"})
        for value in ("tenant-a", " tenant-a ", 7):
            assert len(found(kind(store, namespace=value))) == 1
        assert not found(kind(store, namespace="tenant-b"))
        for value, message in (
            (b"tenant-a", "namespace of type bytes"), (7.0, "namespace of type float"),
            (True, "namespace of type bool"), (["a"], "namespace of type list"),
            ("", "namespace='' is empty"), (" ", "namespace=' ' is empty"),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=message) as refused:
                kind(store, namespace=value)
            assert "tenant-a" not in str(refused.value)

    def test_a_selector_in_a_run_sees_what_the_run_may_see(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        select = RunnableLambda(lambda task: selector(store).select_examples({"task": task}))
        assert select.invoke(EURO) == []
        assert len(select.invoke(EURO, {"metadata": {"kp_namespace": "tenant-a"}})) == 1


@pytest.mark.parametrize("way", ["callbacks of the agent", "callbacks of the chain"])
class TestAgentsInsideOthers:
    """Whose a run is, where only what is inside it says so."""

    def play(self, store: TraceStore, way: str, *tenants: Any, outer: Any = None) -> list[Any]:
        watching = kept_handler(store)
        own: Any = {"callbacks": [watching]} if way == "callbacks of the agent" else {}

        def ask(_: Any) -> str:
            for tenant in tenants:
                agent = create_agent(ScriptedChatModel(answers()), [rates])
                config: Any = {"metadata": {"kp_namespace": tenant}, **own}
                agent.invoke({"messages": [("user", POUND)]}, config)
            return "done"

        config: Any = {"callbacks": [watching]} if way == "callbacks of the chain" else {}
        RunnableLambda(ask).invoke("ask", {**config, "metadata": outer or {}})
        assert watching.flush(120)
        assert watching.stats()["callback_errors"] == 0
        return [one.namespace for one in store.runs()]

    def test_an_agent_in_a_chain(self, store: TraceStore, way: str) -> None:
        assert self.play(store, way, "tenant-a") == ["tenant-a"]
        assert not found(retriever(store))
        assert not found(retriever(store), kp_namespace="tenant-b")

    def test_two_tenants_in_one_chain(self, store: TraceStore, way: str) -> None:
        namespaces = self.play(store, way, "tenant-a", "tenant-b")
        if way == "callbacks of the chain":
            assert [one.startswith("unknown:") for one in namespaces] == [True]
        else:
            assert sorted(namespaces) == ["tenant-a", "tenant-b"]
        assert not found(retriever(store))

    @pytest.mark.parametrize("tenants", [("a", "b"), (np.array([1, 2, 3]), np.array([1, 2]))])
    def test_an_agent_of_another_tenant(self, store: TraceStore, way: str, tenants: Any) -> None:
        inner, outer = tenants  # values that cannot be compared, too
        (namespace,) = self.play(store, way, inner, outer={"kp_namespace": outer})
        assert namespace == "a" or namespace.startswith("unknown:")
        assert not found(retriever(store), kp_namespace=outer)
        assert not found(retriever(store))
