"""A run that was shown kept traces: what is noted of that, and what its trace and score ignore."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import ReasoningTrace, ScoredTrace, Scorer, TraceStore
from kp_langchain.gate import ShownTrace
from kp_langchain.recording.callbacks import ambient_run_id
from kp_langchain.scoring.in_process_memory import InProcessMemory
from tests.agents import ASK, agent, call, handler, say, shape

EXAMPLE = "Task: compare the two currencies\nCall: rates({'from': 'GBP', 'to': 'USD'})"
SHOWN = ShownTrace("kp:trace:kept", 1, 0.83)


def noting(watching: Any, *shown: ShownTrace, text: str = EXAMPLE) -> RunnableLambda[Any, Any]:
    """A step that says, inside the run, what the run is shown."""

    def note(inputs: Any) -> Any:
        run_id = ambient_run_id()
        assert run_id is not None
        assert watching.note_shown(run_id, shown or [SHOWN], text)
        return inputs

    return RunnableLambda(note)


def play(*answers: Any, text: str = EXAMPLE, **options: Any) -> ScoredTrace:
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append, **options)
    chain = noting(watching, text=text) | agent(*answers)
    chain.invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(120)
    return scored[0]


def texts(trace: ReasoningTrace) -> list[str | None]:
    return [step.content for step in trace.steps if step.type == "thought"]


class TestQuotes:
    def test_a_thought_does_not_count_what_it_quotes(self) -> None:
        thought = f"An earlier run did this:\n{EXAMPLE}\nI search first."
        scored = play(say(thought, call("search", q="a")), say("42"))
        assert texts(scored.trace) == ["An earlier run did this:\nI search first.", "42"]

    def test_a_thought_that_only_quotes_is_none(self) -> None:
        scored = play(say(EXAMPLE, call("search", q="a")), say("42"))
        assert shape(scored.trace) == ["call search", "saw search", "thought"]

    def test_without_a_quote_nothing_changes(self) -> None:
        thought = "  I search,\n\n  then I answer. "
        plain = play(say(thought, call("search", q="a")), say("42"), text="")
        beside = play(say(thought, call("search", q="a")), say("42"))
        assert texts(plain.trace) == texts(beside.trace)

    def test_the_lines_beside_a_quote_stay_as_they_are(self) -> None:
        code = "def f(x):\n    if x:\n        return 1\n\n    return 2"
        scored = play(say(f"{EXAMPLE}\n{code}", call("search", q="a")), say("42"))
        assert texts(scored.trace) == [code, "42"]

    def test_an_answer_has_no_example_in_it(self) -> None:
        scored = play(say(f"It is 42.\n{EXAMPLE}"))
        assert scored.trace.outcome.result_summary.strip() == "It is 42."
        assert [text and text.strip() for text in texts(scored.trace)] == ["It is 42."]

    @pytest.mark.parametrize("example", ["The claim is refuted by two sources.", EXAMPLE])
    def test_an_answer_may_be_that_of_an_example(self, example: str) -> None:
        plain = play(say(example), text="").trace
        beside = play(say("", call("search", q="a")), say(example), text=example).trace
        assert beside.outcome.result_summary == plain.outcome.result_summary == example
        assert texts(beside) == texts(plain) == [example]
        assert beside.metadata.success is plain.metadata.success is True

    def test_only_the_thought_that_answers_may_repeat_it(self) -> None:
        answer = "The claim is refuted by two sources."
        thought = f"An earlier run said this:\n{answer}\nI look, too."
        trace = play(say(thought, call("search", q="a")), say(answer), text=answer).trace
        assert texts(trace) == ["An earlier run said this:\nI look, too.", answer]

    def test_the_reasoning_before_such_an_answer_has_no_quote_in_it(self) -> None:
        answer = "The claim is refuted by two sources."
        thought = f"<think>\nThey say:\n{EXAMPLE}\n</think>\n{answer}"
        trace = play(say(thought), text=f"{EXAMPLE}\n{answer}").trace
        assert trace.outcome.result_summary == answer
        assert texts(trace) == [f"They say:\n\n{answer}"]

    def test_an_answer_that_was_cut_off_is_no_success(self) -> None:
        """What the outcome shows of the model's answer is found in the thought that gave it."""
        answer = say("The claim is refuted by two sources.")
        answer.response_metadata["finish_reason"] = "length"
        trace = play(answer, text=answer.text).trace
        assert trace.metadata.success is False

    def test_what_a_retriever_returned_of_them(self) -> None:
        class Kept(BaseRetriever):
            def _get_relevant_documents(
                self, query: str, *, run_manager: CallbackManagerForRetrieverRun
            ) -> list[Document]:
                watching.note_shown(run_manager.run_id, [SHOWN], EXAMPLE)
                return [Document(EXAMPLE)]

        @tool
        def earlier_runs(q: str) -> str:
            """Return earlier runs."""
            return "\n".join(document.page_content for document in Kept().invoke(q))

        scored: list[ScoredTrace] = []
        watching = handler(on_scored=scored.append)
        asking = agent(say("", call("earlier_runs", q="a")), say("42"), tools=(earlier_runs,))
        asking.invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(120)
        (one,) = scored
        assert one.shown == (SHOWN,)
        assert "GBP" not in one.trace.model_dump_json()


class TestNovelty:
    def test_a_run_is_not_less_novel_for_following_what_it_was_shown(self) -> None:
        memory = InProcessMemory(100, None)
        scorer = Scorer(embedder=None, cache=memory)
        first = play(say("a thought of some length"), text="", scorer=scorer)
        assert first.breakdown.novelty.value == 0.5
        again = ShownTrace(first.trace.id, 1, 0.9)
        scored: list[ScoredTrace] = []
        watching = handler(on_scored=scored.append, scorer=scorer)
        repeating = agent(say("a thought of some length"))
        (noting(watching, again) | repeating).invoke(ASK, {"callbacks": [watching]})
        repeating = agent(say("a thought of some length"))
        held_out = ShownTrace(first.trace.id, 1, 0.9, held_out=True)
        (noting(watching, held_out, text="") | repeating).invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(120)
        assert [one.breakdown.novelty.value for one in scored] == [0.5, 0.0]


class TestLog:
    def test_it_is_stored_with_the_run(self, tmp_path: Any) -> None:
        with TraceStore(tmp_path / "kp.db") as store:
            scored = play(say("42"), store=store)
            assert store.shown.of_run(scored.trace.id) == [SHOWN]
            (shown_to,) = store.shown.shown_to(SHOWN.trace_id)
            assert (shown_to.trace_id, shown_to.success) == (scored.trace.id, True)
            assert not shown_to.is_stated
            store.report_outcome(scored.trace.id, success=False)
            (counted,) = store.shown.outcome_counts("default")
            assert counted == (SHOWN.trace_id, False, False, True, 1, None)

    def test_a_run_that_has_ended_takes_no_notes(self) -> None:
        watching = handler()
        assert not watching.note_shown(uuid4(), [SHOWN], EXAMPLE)

    @pytest.mark.parametrize("count", [1, 5000])
    def test_it_is_bounded(self, count: int) -> None:
        scored: list[ScoredTrace] = []
        watching = handler(on_scored=scored.append)
        many = [ShownTrace(f"kp:trace:{number}", number + 1, 0.5) for number in range(count)]
        (noting(watching, *many) | agent(say("42"))).invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(120)
        assert len(scored[0].shown) == min(count, 200)
