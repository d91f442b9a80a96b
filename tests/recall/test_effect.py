"""What examples do for a domain: the rule, what the store counts, and what follows of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ScoredTrace, TraceStore, Verdict
from kp_langchain.embedding.local_models import resolve_embedder
from kp_langchain.gate.run import ShownTrace
from kp_langchain.recall import Effect, effects_in, example_search
from kp_langchain.recall.effect import effect_of, interval_of
from kp_langchain.run_keys import RunKeys
from kp_langchain.store.recall_effects import EffectCount
from kp_langchain.usage import Usage
from tests.cli.made_runs import made
from tests.commands import cli
from tests.recall.test_middleware import Played, shown_ids
from tests.recall.words import EURO, POUND, Words, keep, middleware

# ------------------------------------------------------------------ the rule


def counts(
    shown: tuple[int, int], without: tuple[int, int], *, namespace: str | None = None,
    is_stated: bool = True,
) -> list[EffectCount]:  # fmt: skip
    """How many runs with examples succeeded and failed, and how many without."""
    return [
        EffectCount(held_out, success, is_stated, namespace, runs)
        for held_out, side in ((False, shown), (True, without))
        for success, runs in zip((True, False), side, strict=True)
        if runs
    ]


MILD = counts((700, 300), (70, 30), namespace="b")  # no difference
HURTS = counts((30, 70), (18, 2))


@pytest.mark.parametrize(
    ("of_runs", "word", "rests_on_one"),
    [
        ([], "not proven", False),
        (counts((99, 41), (11, 7)), "not proven", False),
        (counts((95, 5), (10, 20)), "helps", False),
        (HURTS, "hurts", False),
        (counts((0, 9), (1, 0)), "not proven", False),  # one run without proves nothing
        (counts((30, 70), (0, 0)), "not proven", False),
        (counts((300, 700), (180, 20), is_stated=False), "not proven", False),  # nobody judged
        # No namespace alone stops the examples of others, however many runs it has,
        ([*MILD, *counts((0, 900), (99, 1), namespace="a")], "not proven", True),
        ([*MILD, *counts((0, 200), (99, 1), namespace="a")], "not proven", True),
        ([*counts((5, 2), (1, 0)), *counts((0, 900), (99, 1), namespace="a")], "not proven", True),
        # but two do, the host's own runs do, and one that nobody shares the domain with.
        ([*counts((30, 70), (18, 2), namespace="a"), *counts((30, 70), (18, 2), namespace="b")],
         "hurts", False),
        ([*HURTS, *counts((5, 5), (1, 1), namespace="a")], "hurts", False),
        (counts((30, 70), (18, 2), namespace="a"), "hurts", False),
    ],
)  # fmt: skip
def test_when_examples_help_or_hurt(
    of_runs: list[EffectCount], word: str, rests_on_one: bool
) -> None:
    effect = effect_of("finance", of_runs)
    assert (effect.word, effect.rests_on_one_namespace) == (word, rests_on_one)
    assert bool(effect.stop_reason) is (word == "hurts")


ARMS = st.integers(0, 5000).flatmap(lambda runs: st.tuples(st.just(runs), st.integers(0, runs)))


@given(ARMS, ARMS)
def test_the_interval_holds_the_difference_and_turns_with_it(
    shown: tuple[int, int], without: tuple[int, int]
) -> None:
    low, high = interval_of(*shown, *without)
    assert -1 <= low < high <= 1
    assert interval_of(*without, *shown) == pytest.approx((-high, -low))
    if shown[0] and without[0]:
        assert low <= shown[1] / shown[0] - without[1] / without[0] <= high
    sides = [(right, runs - right) for runs, right in (shown, without)]
    words = [effect_of("d", counts(*ordered)).word for ordered in (sides, sides[::-1])]
    opposite = {"helps": "hurts", "hurts": "helps", "not proven": "not proven"}
    assert words[1] == opposite[words[0]]  # the other way round, it says the opposite
    # Ten times the runs with the same rates say more.
    more = interval_of(*(10 * one for one in shown + without))
    assert shown[0] * without[0] < 100 or more[1] - more[0] < high - low or high - low == 2


# ------------------------------------------------------------------ what the store counts


def ended(
    number: int, success: bool, *, held_out: bool = False, judged: bool = True,
    shown: tuple[ShownTrace, ...] | None = None, tokens: int = 0, **options: Any,
) -> ScoredTrace:  # fmt: skip
    """A run with an example, or held out from it; a higher number began later."""
    if shown is None:
        shown = (ShownTrace("kp:trace:example", 1, 0.8, held_out, is_drawn=True),)
    fields = {"shown": shown, "verdict": Verdict(success=success) if judged else None}
    return made(number, success=success, score=0.1, options=fields | options)


def losing(store: TraceStore, first: int = 1000, *, runs: int = 100) -> None:
    """Add runs of a domain in which examples hurt."""
    store.add(*[ended(first + n, success=n % 10 < 2) for n in range(runs)])
    without = range(first + runs, first + runs + runs // 4)
    store.add(*[ended(n, success=n % 10 > 0, held_out=True) for n in without])


def the_effect(store: TraceStore, domain: str = "finance") -> Effect:
    (effect,) = effects_in(store, domain)
    return effect


def test_the_runs_with_examples_and_without(store: TraceStore) -> None:
    def usage(tokens: int, ms: float) -> Usage:
        return Usage.from_dict(
            {"duration_ms": ms, "models": [{"model": "m", "calls": 1, "reported_calls": 1,
             "input_tokens": tokens, "output_tokens": 0}]}
        )  # fmt: skip

    both = tuple(ShownTrace(f"kp:trace:{n}", n, 0.5, n == 1, is_drawn=True) for n in (1, 2))
    undrawn = (ShownTrace("kp:trace:1", 1, 0.5),)
    store.add(
        ended(1, success=True, shown=both, usage=usage(100, 1000)),  # counts once, and was shown
        ended(2, success=False, usage=usage(300, 3000)),
        ended(3, success=True, judged=False),
        ended(4, success=True, held_out=True, usage=usage(50, 500)),
        ended(5, success=False, held_out=True, judged=False),
        ended(6, success=True, shown=()),  # nothing was similar
        ended(7, success=False, shown=undrawn),  # no lot decided that it was shown something
    )
    effect = the_effect(store)
    assert (effect.shown.runs, effect.shown.judged, effect.shown.succeeded) == (3, 2, 1)
    assert (effect.shown.seemed_successful, effect.held_out.seemed_successful) == (1, 0)
    assert (effect.held_out.runs, effect.held_out.judged, effect.held_out.succeeded) == (2, 1, 1)
    assert (effect.shown.tokens, effect.shown.seconds) == (200.0, 2.0)
    assert (effect.held_out.tokens, effect.held_out.seconds) == (50.0, 0.5)
    assert effect.difference == -0.5
    store.deletions.carry_out(store.deletions.plan(made(4).trace.id))
    assert the_effect(store).held_out.judged == 0
    assert the_effect(store).difference is None
    assert effects_in(store, "law") == []


def test_after_a_decision_only_later_runs_count_and_it_goes_with_the_last_run(
    store: TraceStore,
) -> None:
    losing(store)
    assert the_effect(store).word == "hurts"
    decision = store.effects.decide("finance", shows=True, note="ask bob@example.com")
    assert decision.note == "ask [REDACTED:email]"
    resumed = the_effect(store)
    assert (resumed.word, resumed.shown.runs, resumed.stop_reason) == ("not proven", 0, "")
    later = 10**8  # minutes: long after the decision
    losing(store, later)
    assert the_effect(store).word == "hurts"
    assert the_effect(store).shown.runs == 100
    store.effects.decide("finance", shows=False)
    assert the_effect(store).shown.runs == 100  # a stop does not begin anew
    assert "a person stopped examples" in the_effect(store).stop_reason
    store.effects.decide("law", shows=True)
    store.effects.decide("code", shows=False)
    store.deletions.carry_out(store.deletions.plan(domain="finance"))
    # What is stopped stays so: a registry's units could be shown to later runs.
    assert [(one.domain, bool(one.stop_reason)) for one in effects_in(store)] == [
        ("code", True), ("finance", True),
    ]  # fmt: skip


# ------------------------------------------------------------------ what follows


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search counts anew each time, and the default embedder counts words."""
    monkeypatch.setattr("kp_langchain.recall.task_index._OUTCOMES_EVERY_S", 0.0)
    monkeypatch.setattr("kp_langchain.recall.task_index._TIMES_LONGER", 0)
    monkeypatch.setattr(example_search, "resolve_embedder", lambda _: resolve_embedder(Words()))


@pytest.mark.usefixtures("at_once")
def test_where_examples_hurt_nothing_is_shown_until_a_person_decides(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kp_langchain")
    database = ("--database", store.location)

    def recall(*words: str) -> str:
        done = cli("recall", *words, *database, columns=300)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    kept, shows = keep(store, POUND), middleware(store, held_out=1e-9)
    assert shown_ids(Played(store, shows).scored) == [kept]
    losing(store)
    Played(store, shows)  # after its answer, it is counted how runs ended
    played = Played(store, shows)
    assert not played.examples
    assert not shown_ids(played.scored)
    reason = "runs of this domain ended worse with examples than without"
    events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
    assert reason in events[-1].reason  # type: ignore[attr-defined]
    assert "kp-langchain recall --resume --domain finance" in events[-1].getMessage()
    assert f"Nothing is shown: {reason}" in recall(EURO, "--domain", "finance")
    listed = recall("--effect")
    assert "without (held out) 88 % of 25: -68 (" in listed
    assert "; examples hurt\n" in listed
    assert f"Nothing is shown: {reason}" in listed

    assert "Runs of finance are shown examples again" in recall("--resume", "--domain", "finance")
    assert shows.load(120)
    assert shown_ids(Played(store, shows).scored) == [kept]
    assert "; not proven yet" in recall("--effect", "--domain", "finance")

    recall("--stop", "--domain", "finance", "--note", "see bob@example.com")
    assert shows.load(120)
    assert not Played(store, shows).examples
    listed = recall("--effect")
    assert "a person stopped examples in this domain" in listed
    assert ": see [REDACTED:email]." in listed
    (line,) = recall("--effect", "--json").splitlines()
    values = json.loads(line)
    assert (values["word"], values["decision"]["shows"]) == ("not proven", False)
    assert values["shown"]["runs"] == 1
    assert "--resume --domain finance" in values["stop_reason"]


@pytest.mark.usefixtures("at_once")
def test_one_namespace_stops_the_examples_of_no_other(store: TraceStore) -> None:
    kept, shows = keep(store, POUND), middleware(store)
    store.add(*[ended(n, success=n % 10 < 7, held_out=n < 20,
                      keys=RunKeys(namespace="b")) for n in range(50)])  # fmt: skip
    store.add(*[ended(100 + n, success=False, keys=RunKeys(namespace="a")) for n in range(200)])
    store.add(*[ended(400 + n, success=True, held_out=True, keys=RunKeys(namespace="a"))
                for n in range(20)])  # fmt: skip
    assert shown_ids(Played(store, shows).scored) == [kept]
    assert the_effect(store).rests_on_one_namespace
    listed = cli("recall", "--effect", "--database", store.location, columns=300).stdout
    assert "not proven: without the runs of one namespace it does not hold" in listed
