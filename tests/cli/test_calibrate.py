"""Calibrating as a user does it, on runs that were really scored, fitted and stored."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kp_langchain import Settings, TraceStore
from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.gate_proposal import GateFigures, GateProposal
from kp_langchain.calibration.hypothetical_score import hypothetical_score, hypothetical_worth
from kp_langchain.calibration.measures import Estimate
from kp_langchain.cli.app import app
from kp_langchain.cli.gate_tables import gate_report
from kp_langchain.errors import ConfigError, MissingExtraError, StoreError
from kp_langchain.gate import DEFAULT_THRESHOLDS
from kp_langchain.weights import PROFILES
from tests.cli.judged import fill

pytest.importorskip("sklearn")


def run(*words: str):
    return CliRunner().invoke(app, ["calibrate", *words], env={"COLUMNS": "120"})


def told(*words: str) -> dict:
    done = run("--json", *words)
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.fixture
def store(monkeypatch):
    """A domain whose verdicts can be learned."""
    monkeypatch.setenv("KP_DATABASE_URL", "runs.db")
    with TraceStore("runs.db") as store:
        fill(store, "finance")
        yield store


@pytest.fixture
def two_domains(store):
    """Another beside it, whose verdicts are drawn blindly."""
    fill(store, "code", telling=False, seed=1)
    return store


def test_a_model_that_tells_more_than_the_default_is_installed_and_another_is_not(two_domains):
    store = two_domains
    done = run()
    assert done.exit_code == 0, done.output
    finance, code = done.stdout[done.stdout.index("finance:") :], done.stdout.split("finance:")[0]
    model = store.models.in_force("finance")
    assert f"{model.auc:.2f} ({model.auc_low:.2f} to {model.auc_high:.2f})" in finance
    assert "Installed as version 1; running processes use it within a minute." in finance
    assert "90 verdicts on 30 different tasks" in finance
    assert store.models.entries("code") == []
    assert "Not installed, the default confidence stays in force: on tasks it never saw" in code
    assert not Path("kp.toml").exists()
    assert run("--domain", "finance").exit_code == 0
    assert run("--domain", "code").exit_code == 1


def test_what_is_shown_is_what_was_fitted(store):
    runs = store.models.labelled("finance")
    fitted = fit("finance", runs, weights=PROFILES["finance"])
    found = told("--domain", "finance")
    assert found["auc"]["value"] == fitted.auc.value
    assert found["brier"] == fitted.brier < found["base_brier"] < found["default_brier"]
    assert found["score_auc_before"]["value"] < found["score_auc_after"]["value"]
    assert found["successes"] == sum(run.success for run in runs)
    assert (found["version"], found["before"], found["written"]) == (1, None, None)
    shown = run("--domain", "finance").stdout
    for estimate in ("auc", "score_auc_before", "score_auc_after"):
        assert f"{found[estimate]['value']:.2f} (" in shown
    for row in found["reliability"]:
        assert f"{row['confidence']:.2f}" in shown


def test_the_proposed_gate_is_held_against_no_gate_and_the_one_in_force(store):
    proposal = told("--dry-run")["gate_proposal"]
    assert proposal["refusal"] is None
    in_force, proposed = proposal["in_force"], proposal["proposed"]
    assert (in_force["gate"], in_force["thresholds"]) == ("score", [*DEFAULT_THRESHOLDS["finance"]])
    assert (proposed["gate"], proposed["pass_rate"]) == ("worth", 0.1)
    assert proposed["right"]["value"] > proposal["base_rate"]
    assert proposed["auc"]["low"] > 0.5
    shown = run("--dry-run").stdout
    assert re.search(rf"none +100% +{proposal['base_rate']:.2f}", shown)
    assert re.search(r"in force: score from 0.61 or 0.68 +\d+%", shown)
    assert (proposal["with_model"]["gate"], proposal["with_model"]["pass_rate"]) == ("score", 0.1)
    assert re.search(r"with this model: the best 10% by score +\d+%", shown)
    assert re.search(
        rf"proposed: the best 10% by worth +\d+% +{proposed['right']['value']:.2f} \(", shown
    )


def test_the_gate_in_force_is_judged_by_what_its_model_never_saw(store):
    run("--domain", "finance", "--write")
    model = store.models.in_force("finance")
    runs = store.models.labelled("finance")
    worths = [hypothetical_worth(one, model.held_out_confidence(one)) for one in runs]
    in_force = told("--domain", "finance")["gate_proposal"]["in_force"]
    assert in_force["gate"] == "worth"
    kept = [
        one for one, worth in zip(runs, worths, strict=True) if worth >= in_force["thresholds"][0]
    ]
    assert in_force["runs"] == len(kept) <= 9
    assert in_force["right"]["value"] == pytest.approx(sum(one.success for one in kept) / len(kept))


def test_a_trial_changes_nothing(store):
    done = run("--dry-run")
    assert done.exit_code == 0
    assert "only a trial; the default confidence stays in force" in done.stdout
    assert store.models.entries() == []
    assert not Path("kp.toml").exists()
    assert run("--dry-run", "--write").exit_code == 2


@pytest.mark.parametrize(
    ("target", "pass_rate"),
    [(("--pass-rate", "0.3"), 0.3), ((), 0.1), (("--precision", "0.7"), None)],
)
def test_a_gate_keeps_what_it_promises_on_the_labelled_runs(store, target, pass_rate):
    proposal = told("--domain", "finance", *target)["gate_proposal"]
    runs = store.models.labelled("finance")
    held_out = fit("finance", runs).held_out
    worths = [hypothetical_worth(one, p) for one, p in zip(runs, held_out, strict=True)]
    gate = proposal["proposed"]
    passing = [one for one, w in zip(runs, worths, strict=True) if w >= gate["thresholds"][0]]
    assert len(passing) == gate["runs"] == round(gate["kept"] * len(runs))
    good = sum(one.success for one in passing) / len(passing)
    assert good == pytest.approx(gate["right"]["value"])
    assert gate["pass_rate"] == pass_rate
    if pass_rate is not None:
        assert gate["kept"] <= pass_rate
    else:
        assert gate["right"]["low"] >= 0.7


def test_what_is_proposed_is_written_only_on_request(store):
    Path("kp.toml").write_text("max_steps = 7 # ours\n\n[domains.finance]\nkeep = 'all' # both\n")
    before = Path("kp.toml").read_text()
    assert told("--domain", "finance")["written"] is None
    assert Path("kp.toml").read_text() == before

    done = run("--domain", "finance", "--write")

    assert done.exit_code == 0
    assert 'Wrote gate = "worth" and pass_rate = 0.1 of finance into kp.toml.' in done.stdout
    text = Path("kp.toml").read_text()
    assert text.startswith(before)
    policy = Settings().policy_for("finance")
    assert (policy.gate, policy.pass_rate, policy.keep) == ("worth", 0.1, "all")
    # What is in force now is what would be proposed, and nothing changes any more.
    again = run("--domain", "finance", "--write").stdout
    assert "Version 1 stays in force: nothing has changed since." in again
    assert "in force: the best 10% by worth" in again
    assert Path("kp.toml").read_text() == text
    assert [one.version for one in store.models.entries("finance")] == [1]


def test_a_precision_is_written_as_a_threshold_in_place_of_a_pass_rate(store):
    run("--domain", "finance", "--write")
    done = run("--domain", "finance", "--write", "--precision", "0.7")
    assert done.exit_code == 0
    policy = Settings().policy_for("finance")
    gate = told("--domain", "finance", "--precision", "0.7")["gate_proposal"]["proposed"]
    assert policy.pass_rate is None
    assert (policy.gate, policy.worth_threshold) == ("worth", gate["thresholds"][0])
    run("--domain", "finance", "--write", "--pass-rate", "0.2")
    assert Settings().policy_for("finance").pass_rate == 0.2  # which comes before a threshold


def test_a_precision_is_written_although_a_pass_rate_is_inherited(store, monkeypatch):
    Path("kp.toml").write_text("[defaults]\npass_rate = 0.3\n")
    run("--domain", "finance", "--write", "--precision", "0.7")
    policy = Settings().policy_for("finance")
    assert (policy.gate, policy.pass_rate) == ("worth", None)
    monkeypatch.setenv("KP_DOMAINS__FINANCE__PASS_RATE", "0.33")
    done = run("--domain", "finance", "--write", "--precision", "0.7")
    assert "KP_DOMAINS__FINANCE__PASS_RATE in the environment sets another pass_rate" in done.stdout


def test_a_variable_that_comes_first_is_told(store, monkeypatch):
    monkeypatch.setenv("KP_DOMAINS__FINANCE__PASS_RATE", "0.33")
    done = run("--domain", "finance", "--write")
    assert "in force: the best 33% by score" in done.stdout
    assert "kp.toml, a new file" in done.stdout
    assert (
        "It has no effect here: KP_DOMAINS__FINANCE__PASS_RATE in the environment sets another "
        "pass_rate and comes first" in done.stdout
    )
    written = told("--domain", "finance", "--write")["written"]
    assert written == {
        "path": "kp.toml",
        "created": False,
        "overridden_by": {"pass_rate": ["KP_DOMAINS__FINANCE__PASS_RATE"]},
    }


def test_a_target_that_cannot_be_reached_writes_nothing(store):
    done = run("--domain", "finance", "--precision", "0.99", "--write")
    assert done.exit_code == 1
    assert "No gate is proposed: no threshold is sure to give precision 0.99" in done.stdout
    assert "Nothing was written, because no gate is proposed." in done.stdout
    assert not Path("kp.toml").exists()
    assert store.models.in_force("finance") is not None


def test_more_verdicts_make_another_version(store):
    run("--domain", "finance")
    first = store.models.in_force("finance")
    fill(store, "finance", seed=2)
    done = run("--domain", "finance")
    second = store.models.in_force("finance")
    assert second.runs == 180
    assert (
        f"Installed as version 2 (AUC {second.auc:.2f}) in place of version 1 "
        f"(AUC {first.auc:.2f})" in done.stdout
    )
    shown = run("show").stdout
    assert "finance: version 2 is in force" in shown
    assert "180" in shown


def test_a_refused_model_leaves_the_one_in_force(two_domains):
    store = two_domains
    run("--domain", "finance")
    old = replace(store.models.in_force("finance"), domain="code")
    store.models.install(old)
    done = run("--domain", "code", "--write")
    assert done.exit_code == 1
    assert "Not installed, version 1 stays in force: " in done.stdout
    assert "Nothing was written, because the model was refused." in done.stdout
    assert "No gate is proposed: the model is refused." in done.stdout
    found = told("--domain", "code")
    proposal = found["gate_proposal"]
    assert (proposal["proposed"], proposal["with_model"], found["written"]) == (None, None, None)
    assert store.models.in_force("code") == old
    assert not Path("kp.toml").exists()
    # Of both domains, one has a gate to write.
    assert run("--write").exit_code == 0
    assert Settings().policy_for("code").gate == "score"


def test_a_gate_in_force_that_is_worse_than_none_is_named_although_the_model_is_refused(store):
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        # What scored high has failed, and what the runs look like tells nothing.
        connection.execute("update runs set features = (select features from runs limit 1)")
    runs = store.models.labelled("finance")
    scores = [hypothetical_score(one, PROFILES["finance"]) for one in runs]
    middle = sorted(scores)[len(scores) // 2]
    failed = [one.trace_id for one, score in zip(runs, scores, strict=True) if score >= middle]
    for trace_id in failed:
        store.report_outcome(trace_id, success=False)
    Path("kp.toml").write_text(f"[domains.finance]\nthreshold = {middle}\n")
    done = run("--domain", "finance")
    in_force = told("--domain", "finance")["gate_proposal"]["in_force"]
    assert in_force["right"]["value"] == 0
    assert done.exit_code == 1
    assert re.search(r"in force: score from \S+ +\d+% +0.00 \(", done.stdout)
    stays = "What stays in force keeps a smaller share of successes than no gate would"
    assert stays in " ".join(done.stdout.split())
    assert stays in " ".join(run("--domain", "finance", "--dry-run").stdout.split())


@pytest.mark.parametrize(
    ("right", "is_installed", "warns"),
    [((0.2, 0.8), False, True), ((0.2, 0.8), True, False), ((0.8, 0.2), False, False),
     ((0.8, 0.2), True, True)],
)  # fmt: skip
def test_what_stays_in_force_depends_on_whether_the_model_was_installed(right, is_installed, warns):
    area = Estimate(0.6, 0.5, 0.7)
    in_force, with_model = (
        GateFigures("score", (0.5,), None, 10, 0.1, Estimate(one, 0.0, 1.0), 0.1, area)
        for one in right
    )
    proposal = GateProposal(0.5, in_force, with_model, refusal="it may be chance")
    parts = gate_report(proposal, is_installed=is_installed)
    assert any("smaller share of successes" in str(part) for part in parts) is warns


def test_models_are_shown_and_removed(store):
    assert "No model in" in run("show").stdout
    assert "No model of domain 'law' in" in run("show", "--domain", "law").stdout
    run()
    model = store.models.in_force("finance")
    shown = run("show", "--domain", "finance").stdout
    assert "finance: version 1 is in force" in shown
    assert f"{model.auc:.2f} ({model.auc_low:.2f} to {model.auc_high:.2f})" in shown
    doubt, done = shown.index("words of doubt in the answer"), shown.index("words of completion")
    assert done < doubt  # what speaks for success stands above what speaks against it
    (one,) = (json.loads(line) for line in run("show", "--json").stdout.splitlines())
    assert (one["version"], one["active"], one["model"]) == (1, True, model.to_dict())

    removed = run("remove", "finance")
    assert removed.exit_code == 0
    assert "The model of finance is out of force" in removed.stdout
    assert store.models.in_force("finance") is None
    assert "finance: no model is in force" in run("show").stdout
    assert run("remove", "finance").exit_code == 1
    assert run("--domain", "finance").exit_code == 0
    assert [(one.version, one.active) for one in store.models.entries("finance")] == [
        (1, False),
        (2, True),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "update models set body = '{}'",
        "update models set body = '{not json'",
        "update models set body = '[]'",
        """update models set body = replace(body, '"auc":', '"auc": NaN, "was":')""",
    ],
)
def test_a_model_that_something_else_changed_is_named_and_can_be_replaced(store, change):
    run()
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute(change)
    for words in ((), ("show",)):
        with pytest.raises(StoreError) as caught:
            CliRunner().invoke(app, ["calibrate", *words], catch_exceptions=False)
        assert "version 1 of the model of domain 'finance' cannot be read" in str(caught.value)
        assert "kp-langchain calibrate remove finance (" in str(caught.value)
        assert "https:" not in str(caught.value)
    assert run("remove", "finance").exit_code == 0
    assert "Installed as version 2" in run().stdout


@pytest.mark.parametrize(
    "change",
    [
        "update runs set features = '[]'",
        "update runs set breakdown = '{}'",
        """update runs set features = replace(features, '"steps":', '"steps": "many", "was":')""",
    ],
)
def test_figures_that_something_else_changed_are_named(store, change):
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        assert connection.execute(change).rowcount == 90
    with pytest.raises(StoreError, match=r"the figures of run .* cannot be read"):
        CliRunner().invoke(app, ["calibrate"], catch_exceptions=False)


def test_an_outdated_model_is_called_so(store):
    run("--domain", "finance")
    old = replace(store.models.in_force("finance"), features_version=99)
    store.models.install(old)
    assert "finance: version 2 is outdated and not used; fit again" in run("show").stdout
    assert "Installed as version 3" in run("--domain", "finance").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--pass-rate", "0"),
        ("--pass-rate", "1.1"),
        ("--pass-rate", "nan"),
        ("--precision", "1"),
        ("--precision", "-0.1"),
        ("--pass-rate", "0.1", "--precision", "0.9"),
        ("--dry-run", "remove", "finance"),
        ("--domain", "finance", "show"),
        ("remove",),
        ("--pass-rate", "many"),
    ],
)
def test_wrong_usage(store, words):
    assert run(*words).exit_code == 2
    assert store.models.entries() == []


def test_without_verdicts_there_is_nothing_to_learn():
    TraceStore("empty.db").close()
    with TraceStore("empty.db") as store:
        fill(store, "finance", runs=3)
    done = run("--domain", "finance", "--database", "empty.db")
    assert done.exit_code == 1
    assert "3 verdicts; at least 30 are needed" in done.stdout
    assert "Threshold" not in done.stdout
    done = run("--write", "--database", "empty.db")
    assert done.exit_code == 1
    assert "Nothing was written, because the model was refused." in done.stdout
    assert not Path("kp.toml").exists()
    done = run("--domain", "law", "--database", "empty.db")
    assert done.exit_code == 1
    assert "no run of domain 'law' in " in str(done.exception)
    assert "kp-langchain label ID --success" in str(done.exception)
    assert "there is no database" in str(run("--database", "nowhere.db").exception)


def test_a_domain_with_a_hostile_name_is_shown_as_it_is_and_harmless(store):
    name = "[bold]\x1b[31m.x"
    fill(store, name)
    done = run("--domain", name, "--write")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "[bold]\ufffd[31m.x: 90 verdicts" in done.stdout
    assert Settings().policy_for(name).gate == "worth"
    assert "\x1b" not in run("show").stdout
    assert "\x1b" not in run("remove", name).stdout


@pytest.mark.parametrize("library", ["sklearn.linear_model", "sklearn.model_selection", "tomlkit"])
def test_a_library_that_is_missing_is_named(store, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    done = run("--domain", "finance", "--write")
    assert isinstance(done.exception, MissingExtraError)
    assert "pip install 'kp-langchain[calibrate]'" in str(done.exception)


def test_a_model_in_force_keeps_the_held_out_figures_of_the_runs_it_was_fitted_to(store):
    assert run("--domain", "finance").exit_code == 0
    runs = store.models.labelled("finance")
    model = store.models.in_force("finance")
    assert {run.trace_id for run in runs} == {found.trace_id for found in store.runs(limit=500)}
    held_out = fit("finance", runs, weights=PROFILES["finance"]).held_out
    assert [model.held_out_confidence(run) for run in runs] == list(held_out)


@pytest.fixture
def provisional(monkeypatch):
    """A domain whose few verdicts do not rule out chance beyond doubt."""
    monkeypatch.setenv("KP_DATABASE_URL", "runs.db")
    with TraceStore("runs.db") as store:
        fill(store, "finance", runs=30, seed=2)
        yield store


def test_a_provisional_model_is_installed_and_named_so(provisional):
    chance = told("--domain", "finance", "--dry-run")["chance"]
    assert 0.01 < chance <= 0.05
    done = run("--domain", "finance")
    assert done.exit_code == 0
    assert "Installed as version 1, provisional (shuffled verdicts are followed as closely in " in (
        done.stdout
    )
    assert f"in {chance:.1%} of trials; more verdicts will tell)" in done.stdout
    assert provisional.models.in_force("finance").provisional
    assert "finance: version 1 is in force, provisional" in run("show").stdout
    found = told("--domain", "finance")
    assert (found["provisional"], found["refusal"], found["version"]) == (True, None, 1)
    (shown,) = (json.loads(line) for line in run("show", "--json").stdout.splitlines())
    assert shown["model"]["provisional"]


def test_a_certain_model_is_not_called_provisional(store):
    assert "provisional" not in run("--domain", "finance").stdout
    assert "provisional" not in run("show").stdout
    assert told("--domain", "finance")["provisional"] is False


def test_what_a_model_leans_on_is_said_in_one_line_with_a_warning(store):
    """In these runs the answers that doubt are also the longer ones."""
    done, found = run("--domain", "finance"), told("--domain", "finance")
    model = store.models.in_force("finance")
    assert len(model.leans_on) == 4
    assert found["leans_on"] == list(model.leans_on)
    assert "characters of the answer, reaches AUC" in found["warning"]
    (shown,) = (json.loads(line) for line in run("show", "--json").stdout.splitlines())
    assert (shown["leans_on"], shown["warning"]) == (found["leans_on"], found["warning"])
    for out in (done.stdout, run("show").stdout):
        assert f"  It leans on: {', '.join(model.leans_on)}.\n" in out
        assert f"  Warning: {model.warning}.\n" in out


def test_a_refused_model_does_not_say_what_it_leans_on(two_domains):
    assert "leans on" not in run("--domain", "code").stdout


def judged_since(store, *, runs: int, opposite: bool) -> None:
    """Add runs with verdicts after the model was fitted, perhaps all the other way round."""
    known = {run.trace_id for run in store.runs(limit=None)}
    fill(store, "finance", runs=runs, seed=7)
    for run in store.models.labelled("finance"):
        if opposite and run.trace_id not in known:
            store.report_outcome(run.trace_id, success=not run.success)


def shown_json() -> dict:
    (line,) = run("show", "--json").stdout.splitlines()
    return json.loads(line)


def test_a_model_is_held_against_later_verdicts(store):
    run("--domain", "finance")
    assert "  0 verdicts so far on runs that it was not fitted to; it is held against them" in (
        run("show").stdout
    )
    assert shown_json()["later_verdicts"]["holds"] is None
    judged_since(store, runs=60, opposite=False)
    later = shown_json()["later_verdicts"]
    assert (later["runs"], later["holds"]) == (50, True)
    assert f"  It holds: promised Brier score {later['promised_brier']:.3f}" in run("show").stdout


def test_a_model_that_no_longer_holds_is_named_with_what_to_do(store):
    run("--domain", "finance")
    judged_since(store, runs=60, opposite=True)
    later = shown_json()["later_verdicts"]
    assert later["holds"] is False
    assert later["auc"] < 0.5
    shown = run("show").stdout
    assert (
        f"  It no longer holds: promised Brier score {later['promised_brier']:.3f}, AUC " in shown
    )
    assert "succeeded; fit it again: kp-langchain calibrate --domain finance.\n" in shown


def test_a_model_that_stays_although_it_no_longer_holds_can_be_taken_out_of_force(store):
    run("--domain", "finance")
    judged_since(store, runs=60, opposite=True)
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        # What these runs look like tells nothing of all of them.
        connection.execute("update verdicts set success = (number % 2), confidence = (number % 2)")
    done = run("--domain", "finance")
    assert done.exit_code == 1
    assert "Not installed, version 1 stays in force" in done.stdout
    assert "Version 1, which stays: it no longer holds: promised " in done.stdout
    assert "take it out of force: kp-langchain calibrate remove finance." in done.stdout
    assert told("--domain", "finance")["later_verdicts"]["holds"] is False


def test_what_the_gate_kept_is_counted_by_what_it_promised(store):
    run("--domain", "finance", "--write")
    assert (
        "The gate keeps the best 10% by worth; no run was judged by it yet." in run("show").stdout
    )
    later = store.models.entries("finance")[-1].model.created_at + timedelta(minutes=1)
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute(
            "update runs set gate = 'worth', gated_value = 0.5, passed = (rowid % 2 = 0), "
            "pass_rate = case when rowid % 4 < 2 then 0.1 else 0.5 end, created_at = ?",
            (f"{later:%Y-%m-%d %H:%M:%S.%f}",),
        )
    shown = re.search(
        r"the best 10% by worth; of the last (\d+) runs it kept (\d+)%", run("show").stdout
    )
    assert shown is not None
    gate = shown_json()["gate"]
    assert (gate["gate"], gate["pass_rate"], gate["threshold"]) == ("worth", 0.1, None)
    assert (gate["runs"], round(100 * gate["kept"])) == (int(shown[1]), int(shown[2]))
    assert 40 <= gate["runs"] <= 50
    run("remove", "finance")
    assert "The policy gates by worth, which takes a model" in run("show").stdout
    assert shown_json()["gate"] is None


def test_a_file_that_cannot_be_written_does_not_hide_what_was_installed(store, monkeypatch):
    monkeypatch.setenv("KP_CONFIG", "/dev/null")
    done = run("--domain", "finance", "--write")
    assert isinstance(done.exception, ConfigError)
    assert "Installed as version 1;" in done.stdout
    assert "Wrote" not in done.stdout


def test_the_curve_is_what_fixed_thresholds_keep(store):
    curve = told("--domain", "finance", "--dry-run")["gate_proposal"]["curve"]
    runs = store.models.labelled("finance")
    held_out = fit("finance", runs).held_out
    worths = [hypothetical_worth(one, p) for one, p in zip(runs, held_out, strict=True)]
    for point in curve:
        assert point["runs"] == sum(worth >= point["threshold"] for worth in worths)


def test_a_model_out_of_force_is_not_held_against_verdicts(store):
    run("--domain", "finance")
    run("remove", "finance")
    assert shown_json()["later_verdicts"] is None
    assert "verdicts so far" not in run("show").stdout


def test_models_are_shown_without_scikit_learn(store, monkeypatch):
    run("--domain", "finance")
    judged_since(store, runs=60, opposite=True)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    done = run("show")
    assert done.exit_code == 0
    assert "finance: version 1 is in force" in done.stdout
    assert "It no longer holds" not in done.stdout
    assert shown_json()["later_verdicts"] is None
