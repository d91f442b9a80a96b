"""The first day of a gate by worth: thirty runs of ten tasks, and then ten verdicts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, ToolException, tool

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer, TraceStore
from kp_langchain.store import StoredRun
from tests.agents import agent, call, say
from tests.cli.support_desk import Words
from tests.commands import cli, write_user_config

DOMAIN = "parcels"
PLACES = {
    "kettle": "Graz", "toaster": "Linz", "lamp": "Wels", "drill": "Bern", "tent": "Basel",
    "bicycle": "Essen", "printer": "Kiel", "piano": "Mainz", "ladder": "Trier", "camera": "Sion",
}  # fmt: skip


@tool
def find_order(item: str) -> str:
    """Look up an order."""
    if item not in PLACES:
        raise ToolException(f"no order of {item!r}")
    return f"The {item} was handed to the carrier."


@tool
def track(item: str) -> str:
    """Ask the carrier."""
    return f"The {item} lies in the depot of {PLACES[item]}."


@tool
def stock(item: str) -> str:
    """Look into the shop."""
    return f"{len(item)} pieces of {item} are left."


find_order.handle_tool_error = True  # the model reads it, and goes on
TOOLS: tuple[BaseTool, ...] = (find_order, track, stock)


def right(item: str) -> list[AIMessage]:
    return [
        say("", call("find_order", item=item)),
        say("", call("track", item=item)),
        say(f"The {item} is in {PLACES[item]} and arrives tomorrow."),
    ]


def failed_call(item: str) -> list[AIMessage]:
    calls = [say("", call("find_order", item=one)) for one in (item, f"{item}s")]
    return [*calls, say("Your parcel is on a ship.")]


def same_call(item: str) -> list[AIMessage]:
    """It gives the right answer, after three equal calls."""
    return [*(say("", call("track", item=item)) for _ in range(3)), right(item)[-1]]


# Each is wrong in its own way.
WRONG = {
    "stolen": [say("It was probably stolen from your doorstep; call the police.")],
    "in_shop": [say("", call("stock", item="tent")), say("We have four more, come over.")],
    "of_another": [say("", call("track", item="lamp")), say("Somebody else has what you bought.")],
    "guessed": [say("", call("stock", item="box")), say("Packing takes another fortnight.")],
    "unpaid": [say("", call("find_order", item="camera")), say("You never paid, so it stays.")],
}
FLAGGED = {"failed_call": failed_call, "same_call": same_call}


class Run(NamedTuple):
    """A run of the day: a task, and how its agent goes about it."""

    item: str
    way: str

    @property
    def is_right(self) -> bool:
        return self.way.startswith("right")

    @property
    def objective(self) -> str:
        return f"Where is the {self.item} that I ordered?"

    def play(self, handler: KPCallbackHandler) -> ScoredTrace:
        way, _, where = self.way.partition("@")
        answers = right(self.item) if way == "right" else WRONG.get(way)
        answers = FLAGGED[way](self.item) if answers is None else answers
        config: dict[str, Any] = {"callbacks": [handler]}
        if where == "thread":
            config["configurable"] = {"thread_id": "one"}
        elif where == "other":
            config["metadata"] = {"kp_namespace": "other"}
        question = {"messages": [("user", self.objective)]}
        agent(*answers, tools=TOOLS).invoke(question, config)
        scored = handler.last()
        assert scored is not None
        return scored


# The first run of each task, then the second of each, then the third.
TASKS = {
    "kettle": ("right", "right", "right"),
    "toaster": ("right", "right", "right"),
    "lamp": ("right", "right", "right"),
    "drill": ("right", "stolen", "right"),
    "tent": ("in_shop", "right", "right"),
    "bicycle": ("right", "right", "of_another"),
    "printer": ("right", "failed_call", "right"),
    "piano": ("right", "same_call", "right"),
    "ladder": ("guessed@thread", "guessed@thread", "right"),
    "camera": ("right", "unpaid", "right@other"),
}
RUNS = [Run(item, TASKS[item][at]) for at in range(3) for item in TASKS]

# A right or a wrong run of each task, by its place above.
JUDGED = {
    "kettle": 0, "toaster": 0, "lamp": 2, "drill": 1, "tent": 0,
    "bicycle": 2, "printer": 0, "piano": 0, "ladder": 0, "camera": 1,
}  # fmt: skip


class Day(NamedTuple):
    """The day in a store.

    Attributes:
        store: The store.
        scorer: The scorer of all handlers.
        at_first: Each run with what was decided on it as it ended.
        later: The runs on which the decision changed afterwards, as `on_scored` was given them.
    """

    store: TraceStore
    scorer: Scorer
    at_first: list[tuple[Run, ScoredTrace]]
    later: list[ScoredTrace]

    def stored(self, item: str, at: int) -> StoredRun:
        """A run of a task as the store has it now."""
        scored = [scored for run, scored in self.at_first if run.item == item][at]
        return self.now(scored)

    def now(self, scored: ScoredTrace) -> StoredRun:
        run = self.store.get(scored.trace.id)
        assert run is not None
        return run

    def kept(self) -> list[tuple[Run, StoredRun]]:
        runs = [(run, self.now(scored)) for run, scored in self.at_first]
        return [(run, stored) for run, stored in runs if stored.decision == "kept"]


@pytest.fixture
def day(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """Thirty runs; the parameter is their embedder."""
    monkeypatch.setenv("KP_DATABASE_URL", "runs.db")
    write_user_config('[defaults]\ngate = "worth"\npass_rate = 0.1\n')
    with TraceStore("runs.db") as store:
        day = Day(store, Scorer(embedder=getattr(request, "param", None)), [], [])
        scored: list[ScoredTrace] = []
        handler = KPCallbackHandler(DOMAIN, store=store, scorer=day.scorer, on_scored=scored.append)
        day.at_first.extend((run, run.play(handler)) for run in RUNS)
        assert handler.flush(120)
        day.later.extend(one for one in scored if one.previous is not None)
        yield day


@pytest.mark.parametrize("day", [None, Words()], ids=["no embedder", "an embedder"], indirect=True)
def test_without_a_verdict_one_right_run_of_a_task_is_kept_if_others_agree(day: Day) -> None:
    kept = day.kept()
    assert kept
    for run, stored in kept:
        agreement = stored.breakdown.agreement
        assert run.is_right, stored.reason
        assert agreement is not None
        assert 2 * agreement.agreeing >= agreement.runs, run
    assert len({run.item for run, _ in kept}) == len(kept)

    # A later run that agrees raises an earlier one; none that was kept is withdrawn.
    raised = [one.trace.id for one in day.later if one.decision == "kept"]
    assert set(raised) & {stored.trace_id for _, stored in kept}
    for _, scored in day.at_first:
        assert scored.decision != "kept" or day.now(scored).decision == "kept"
    for one in day.later:
        assert one.previous is not None
        assert one.previous.decision == "below_threshold"

    # A flag speaks louder than agreement.
    failed, looping = day.stored("printer", 1), day.stored("piano", 1)
    assert failed.reason.startswith("veto:last_call_failed, its last tool call failed")
    assert looping.reason.startswith("veto:same_call_twice, ")
    assert str(looping.breakdown.agreement) == "agrees with 2 of 2 runs of this task"

    # A retry in its thread is no witness, and neither is a run of another namespace.
    for item, at in (("ladder", 0), ("ladder", 1), ("camera", 1)):
        alone = day.stored(item, at).breakdown.agreement
        assert str(alone) == "disagrees with the one other run of this task"
    elsewhere = day.stored("camera", 2)
    assert (elsewhere.agreement, elsewhere.decision) == (None, "below_threshold")
    assert elsewhere.reason.endswith("; no other run of its task to compare it with yet")


def test_another_process_goes_on_with_the_worths_alone(day: Day) -> None:
    """Runs that were gated by the score before do not count in its pass rate."""
    worths = [run.worth for run in day.store.runs() if run.worth is not None]
    with TraceStore("runs.db") as store:
        handler = KPCallbackHandler(DOMAIN, store=store, scorer=day.scorer)
        scored = Run("lamp", "right").play(handler)
    assert scored.gate == "worth"
    assert scored.threshold < max(worths) + 0.02


def test_ten_verdicts_give_a_provisional_model(day: Day) -> None:
    pytest.importorskip("sklearn")
    before = {stored.trace_id for _, stored in day.kept()}
    first = cli("label", "next", "--json", "--limit", str(len(TASKS)))
    assert len({json.loads(line)["objective"] for line in first.stdout.splitlines()}) == len(TASKS)

    *verdicts, last = [
        (day.stored(item, at), Run(item, TASKS[item][at])) for item, at in JUDGED.items()
    ]
    for stored, run in verdicts:
        day.store.report_outcome(stored.trace_id, success=run.is_right)
    refused = cli("calibrate", "--domain", DOMAIN, "--write")
    assert refused.returncode == 1
    assert "9 verdicts; at least 10 are needed" in refused.stdout
    stored, run = last
    day.store.report_outcome(stored.trace_id, success=run.is_right)
    fitted = cli("calibrate", "--domain", DOMAIN, "--write")
    assert fitted.returncode == 0, fitted.stderr
    assert "10 verdicts on 10 different tasks, 5 successes" in fitted.stdout
    model = r"provisional: calibrated on 10 runs, AUC 1\.00 \(\d\.\d\d to \d\.\d\d\)"
    assert re.search(model, cli("calibrate", "show").stdout)
    kept = {stored.trace_id for _, stored in day.kept()}
    for trace_id in before:  # or a run of its task, which a verdict calls right, took its place
        stored = day.store.get(trace_id)
        assert stored is not None
        assert kept & {trace_id, stored.replaced_by}

    with TraceStore("runs.db") as store:  # as the next process has it
        handler = KPCallbackHandler(DOMAIN, store=store, scorer=day.scorer)
        again = {way: Run("drill", way).play(handler).breakdown for way in ("right", "stolen")}
        looping = Run("piano", "same_call").play(handler)
    worths = {way: breakdown.worth for way, breakdown in again.items()}
    assert all(one is not None and re.fullmatch(model, one.basis) for one in worths.values())
    assert worths["right"].confidence > 0.5 > worths["stolen"].confidence  # type: ignore[union-attr]
    # What agrees with a run that a verdict calls wrong is likelier wrong.
    agreement = again["stolen"].agreement
    assert agreement is not None
    assert agreement.evidence < agreement.value
    assert str(agreement).endswith("that a verdict calls wrong")
    assert str(looping).startswith("below_threshold: veto:same_call_twice")
