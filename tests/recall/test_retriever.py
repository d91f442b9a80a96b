"""Kept traces as the documents of a retriever, and as the examples of few-shot prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from kp_langchain import ConfigError, KPExampleSelector, KPRetriever, TraceStore
from tests.agents import shape
from tests.recall.words import EURO, GARDEN, POUND, Words, keep, passing_handler


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "kp.db") as store:
        yield store


def retriever(store: TraceStore, **options: Any) -> KPRetriever:
    options.setdefault("floor", 0.5)
    return KPRetriever("finance", store=store, embedder=Words(), **options)


def selector(store: TraceStore, **options: Any) -> KPExampleSelector:
    options.setdefault("floor", 0.5)
    return KPExampleSelector("finance", store=store, embedder=Words(), **options)


class TestRetriever:
    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    def test_documents_are_kept_traces(self, store: TraceStore, how: str) -> None:
        kept = keep(store)
        kept_traces = retriever(store)
        found = (
            kept_traces.invoke(EURO) if how == "invoke" else asyncio.run(kept_traces.ainvoke(EURO))
        )
        (document,) = found
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

    def test_it_finds_what_the_run_that_asks_may_see(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        mine: Any = {"metadata": {"kp_namespace": "tenant-a"}}
        assert retriever(store).invoke(EURO) == []
        assert len(retriever(store).invoke(EURO, mine)) == 1
        assert len(retriever(store, namespace="tenant-a").invoke(EURO)) == 1
        select = RunnableLambda(lambda task: selector(store).select_examples({"task": task}))
        assert select.invoke(EURO) == []
        assert len(select.invoke(EURO, mine)) == 1

    def test_the_best_come_first(self, store: TraceStore) -> None:
        keep(store, GARDEN, "roses")
        plain = keep(store, EURO.replace("euro", "franc"), "CHFUSD")
        verified = keep(store, EURO.replace("euro", "yen"), "JPYUSD")
        store.report_outcome(verified, success=True)
        found = retriever(store).invoke(EURO)
        assert [(one.id, one.metadata["trust"]) for one in found] == [
            (verified, "verdict"),
            (plain, "own"),
        ]
        assert [document.page_content.split("\n")[1] for document in found] == [
            "<<<example 1: a run that succeeded>>>",
            "<<<example 2: a run that seems to have succeeded>>>",
        ]

    def test_it_uses_the_store_of_the_settings(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep(store)
        monkeypatch.setenv("KP_DATABASE_URL", store.location)
        assert len(KPRetriever(domain="finance", embedder=Words(), floor=0.5).invoke(EURO)) == 1

    def test_unusable_arguments(self, store: TraceStore) -> None:
        with pytest.raises(ConfigError, match="limit=0"):
            retriever(store, limit=0)
        with pytest.raises(ConfigError, match="embedder is None"):
            KPRetriever(store=store, embedder=None)
        with pytest.raises(ConfigError, match="floor=2"):
            retriever(store, floor=2.0)

    @pytest.mark.parametrize("task", ["", "  ", "\x00", "\ud800", "word " * 200_000])
    def test_any_task(self, store: TraceStore, task: str) -> None:
        keep(store)
        assert isinstance(retriever(store).invoke(task), list)


class TestSelector:
    def test_in_a_few_shot_prompt(self, store: TraceStore) -> None:
        kept = keep(store)
        watching = passing_handler(store)
        prompt = FewShotPromptTemplate(
            example_selector=selector(store),
            example_prompt=PromptTemplate.from_template("{example}"),
            suffix="{task}",
            input_variables=["task"],
        )
        assert POUND in prompt.format(task=EURO)
        chain = prompt | FakeListChatModel(responses=["One is 1.08."])
        chain.invoke({"task": EURO}, {"callbacks": [watching]})
        scored = watching.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]

    def test_in_a_few_shot_chat_prompt(self, store: TraceStore) -> None:
        keep(store, "what is {one} pound in {{dollars}}")
        pair = ChatPromptTemplate.from_messages([("human", "{task}"), ("ai", "{answer}")])
        shots: FewShotChatMessagePromptTemplate = FewShotChatMessagePromptTemplate(
            example_selector=selector(store, escape_braces=False),
            example_prompt=pair,
            input_variables=["task"],
        )
        prompt = ChatPromptTemplate.from_messages([shots, ("human", "{task}")])
        messages = prompt.invoke({"task": EURO}).to_messages()
        assert messages[0].text == "what is {one} pound in {{dollars}}"

    def test_braces_of_a_stored_trace_are_no_template(self, store: TraceStore) -> None:
        keep(store, "what is one {key} pound in dollars today")
        prompt = FewShotPromptTemplate(
            example_selector=selector(store),
            example_prompt=PromptTemplate.from_template("{task}"),
            suffix="{task} {key}",
            input_variables=["task", "key"],
        )
        text = prompt.format(task=EURO, key="k")
        assert "one {key} pound" in text

    def test_keys_of_an_example(self, store: TraceStore) -> None:
        keep(store)
        (example,) = selector(store).select_examples({"task": EURO})
        assert (example["task"], example["answer"]) == (POUND, "One is 1.27.")
        assert "rates" in example["example"]

    def test_the_task_may_have_any_key(self, store: TraceStore) -> None:
        keep(store)
        inputs: Any = {"other": GARDEN, "wish": EURO}
        assert len(selector(store, task_key="wish").select_examples(inputs)) == 1
        assert selector(store, task_key="other").select_examples(inputs) == []
        assert selector(store, task_key="missing").select_examples(inputs) == []

    def test_no_example_is_added_by_hand(self, store: TraceStore) -> None:
        with pytest.raises(ConfigError, match="kp-langchain import"):
            selector(store).add_example({"task": "x"})
