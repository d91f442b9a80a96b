"""Situations of `tests.recording` and recorded runs, seen by the handler and by tracers at once.

The trace of the import must be equal to the handler's, except where the file of a tracer does not
hold what the handler sees. Those differences are listed here, and in the guide.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
from kp_langchain.demo.scripted import ScriptedChatModel
from kp_langchain.usage import TOKEN_FIELDS, Tokens
from tests import recorded
from tests.importing.ways import differences, import_values, traced
from tests.recording import situations, situations_of_requests
from tests.recording.situations import Situation, play
from tests.recording.test_usage import langsmith_tokens, openinference_tokens

MODULES = [module.__name__ for module in (situations, situations_of_requests)]

# What no tracer's file holds, by situation: how many traces the handler and the import have, or
# the parts of the traces that differ.
DIFFERENT: dict[str, tuple[int, int] | set[str]] = {
    # A breakpoint is an event of LangGraph's that no tracer records.
    "breakpoint before tools, then continued": (1, 2),
    "a human rejects by changing the state": (1, 2),
    "the state of a paused run is changed with the handler looking on": (1, 2),
    # The tracers see the whole run.
    "a handler on the model only": (2, 1),
    # Custom events are not recorded.
    "an outcome dispatched by the agent": {"outcome", "success", "score"},
    "an outcome dispatched by an async agent": {"outcome", "success", "score"},
}
# A span holds the value of a tool's only argument, and its name only where a model asked for it.
DIFFERENT_OPENINFERENCE: dict[str, tuple[int, int] | set[str]] = {
    "a tool alone, raising": {"steps"},
    "a human edits a call": {"steps"},
    # The model asked before the pause, in a trace of its own.
    "paused, then approved": {"steps"},
    "interrupt() in a tool, then resumed": {"steps"},
    "interrupt() in a tool, ainvoke": {"steps"},
    "a human rejects in a tool, which raises": {"steps"},
    "a human allows a tool, which then fails": {"steps"},
    "a human rejects one call, and another fails by itself": {"steps"},
    # A call that begins after its run has ended begins a trace of its own.
    "a chain that ends before its other model begins": (1, 2),
}
# A call that is still open when its run ends looks like a stream that is closed half-way.
LEFT_OPEN = {"a chain that does not wait for its other model"}
# Each tracer hears of tools that run at once as their threads come by.
UNORDERED = {
    "parallel tool calls",
    "parallel tool calls, async",
    "one of two parallel tool calls fails",
}


# Every second one, and those that differ: the golden files hold what is recorded of all.
SITUATIONS = [
    one
    for number, one in enumerate(situations.SITUATIONS)
    if one.go.__module__ in MODULES
    and (number % 2 == 0 or one.name in {*DIFFERENT, *DIFFERENT_OPENINFERENCE, *LEFT_OPEN})
]


# Runs that never come to an end, or a call that begins after its run has ended, are not recorded.
NOT_RECORDED = {
    "paused and not resumed", "stream closed early", "stream dropped", "LCEL stream closed early",
    "stream never closed", "left at a pause and not resumed",
    "left between a tool's answer and the model's", "left after a tool that asks a model",
    "a chain that does not wait for its other model",
    "a chain that ends before its other model begins", "astream closed early",
    "cancelled in an async tool", "a wrapped graph is asked something new while it waits",
    "a wrapped graph is asked something new, pauses and goes on by itself",
}  # fmt: skip


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scripted models report tokens, in each answer others."""
    numbers, answer_of = itertools.count(1), ScriptedChatModel._next

    def report(model: ScriptedChatModel) -> AIMessage:
        answer, number = answer_of(model), next(numbers)
        usage = {
            "input_tokens": 7 * number,
            "output_tokens": number,
            "total_tokens": 8 * number,
            "input_token_details": {"cache_read": 3 * number},
            "output_token_details": {"reasoning": number // 2},
        }
        named = answer.response_metadata | {"model_name": f"model-{number % 3}"}
        return answer.model_copy(update={"usage_metadata": usage, "response_metadata": named})

    monkeypatch.setattr(ScriptedChatModel, "_next", report)


def tokens_of(runs: list[ScoredTrace]) -> Tokens:
    models = [one for run in runs if run.usage is not None for one in run.usage.models]
    return Tokens(**{name: sum(getattr(one, name) for one in models) for name in TOKEN_FIELDS})


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
@pytest.mark.filterwarnings("ignore")
def test_situation(one: Situation, tmp_path: Path) -> None:
    if one.needs:
        pytest.importorskip(one.needs, reason="this release of langgraph does not tell of it")
    with traced() as files:
        result = play(one)
    counts = langsmith_tokens(files.langsmith), openinference_tokens(files.openinference)
    if one.name not in NOT_RECORDED:
        assert counts == (tokens_of(result.scored),) * 2
    for name in ("langsmith", "openinference", "genai"):
        folder = tmp_path / name
        folder.mkdir()
        imported = import_values(getattr(files, name), folder)
        traces = [one.scored for one in imported if one.scored is not None]
        expected = DIFFERENT.get(one.name)
        if name == "openinference":
            expected = DIFFERENT_OPENINFERENCE.get(one.name, expected)
        if one.name in LEFT_OPEN:
            assert [one.fate for one in imported] == ["cancelled"]
            continue
        if isinstance(expected, tuple):
            assert (len(result.scored), len(traces)) == expected
            continue
        found = differences(result.scored, traces, any_order=one.name in UNORDERED)
        assert {difference.partition(":")[0] for difference in found} == (expected or set()), found
        if name != "genai":  # LangSmith's exporter leaves out what is cached, and reasoning
            assert tokens_of(traces) == tokens_of(result.scored)


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
@pytest.mark.parametrize(
    ("mode", "errors"), [("conversation", "raise"), ("wrapped", "tool_exception")]
)
@pytest.mark.filterwarnings("ignore")
def test_recorded_runs(mode: str, errors: str, tmp_path: Path) -> None:
    for number, run in enumerate(itertools.islice(recorded.load(), 0, None, 400)):
        scored: list[ScoredTrace] = []
        with (
            KPCallbackHandler(
                scorer=Scorer(embedder=None), store=None, on_scored=scored.append
            ) as handler,
            traced() as files,
        ):
            recorded.replayer().replay(run, [handler], mode, errors)
        for name in ("langsmith", "openinference", "genai"):
            folder = tmp_path / f"{number} {name}"
            folder.mkdir()
            imported = import_values(getattr(files, name), folder)
            traces = [one.scored for one in imported if one.scored is not None]
            assert differences(scored, traces, any_order=True) == [], (run["run_id"], name)
