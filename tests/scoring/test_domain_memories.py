"""With a memory for each domain, a trace is compared only with those of its own."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import Scorer
from kp_langchain.scoring import MemoryEntry, NoveltyMemory, domain_memories, process_scorer
from kp_langchain.scoring.domain_memories import DomainMemories
from kp_langchain.scoring.in_process_memory import InProcessMemory
from tests.scoring.test_novelty_memory import Letters, trace_of

SIZE = 3


def memories() -> DomainMemories:
    return DomainMemories(lambda _: InProcessMemory(SIZE), SIZE)


def test_it_is_a_novelty_memory():
    assert isinstance(memories(), NoveltyMemory)
    assert Scorer(cache=memories()).max_remembered == SIZE


@given(
    texts=st.lists(
        st.tuples(st.sampled_from(["finance", "code"]), st.text("abcd", min_size=1, max_size=3)),
        max_size=12,
    )
)
def test_each_is_as_if_it_were_the_only_one(texts):
    traces = []
    for domain, text in texts:
        trace = trace_of(text)
        trace.metadata.task_domain = domain
        traces.append(trace)
    alone = {domain: Scorer(embedder=Letters(), max_remembered=SIZE) for domain, _ in texts}
    one_by_one = Scorer(embedder=Letters(), cache=memories())
    together = Scorer(embedder=Letters(), cache=memories()).evaluate_many(traces, batch_size=4)
    for (domain, _), trace, batched in zip(texts, traces, together, strict=True):
        expected = alone[domain].evaluate(trace)
        for found in (one_by_one.evaluate(trace), batched):
            assert found.novelty_source == expected.novelty_source
            assert found.nearest == expected.nearest
    for trace in traces:
        assert (
            one_by_one.score(trace).nearest
            == alone[trace.metadata.task_domain].score(trace).nearest
        )


def test_those_used_last_are_held(monkeypatch):
    monkeypatch.setattr(domain_memories, "_MOST_DOMAINS", 2)
    memory = memories()
    for domain in ("a", "b", "a", "c"):
        memory.add(MemoryEntry(f"in {domain}", b"f" * 32, domain=domain))
    found = [memory.compare(MemoryEntry("q", b"f" * 32, domain=one)).repeat for one in "acb"]
    assert [repeat and repeat.trace_id for repeat in found] == ["in a", "in c", None]


@pytest.mark.parametrize("scope", ["all", "domain"])
def test_the_process_s_scorer_can_be_sent_to_another_process(monkeypatch, scope):
    monkeypatch.setattr(process_scorer, "_default_scorer", None)
    monkeypatch.setenv("KP_NOVELTY_MEMORY", "7")
    monkeypatch.setenv("KP_NOVELTY_SCOPE", scope)
    arrived = pickle.loads(pickle.dumps(process_scorer.default_scorer()))  # noqa: S301
    assert arrived.max_remembered == 7
    domains = ["finance", "code"]
    for domain in domains:
        trace = trace_of("a")
        trace.metadata.task_domain = domain
        novelty = arrived.evaluate(trace).novelty.value
        assert (novelty == 0) is (scope == "all" and domain == "code")
