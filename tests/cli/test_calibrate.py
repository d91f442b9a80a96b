"""Calibrating as a user does it; golden files hold what `calibrate --json` says of a store."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ConfigError, Settings, TraceStore
from kp_langchain.cli.policy_file import with_policy, write_policy
from tests.cli.made_runs import fill
from tests.commands import Done, cli

pytest.importorskip("sklearn")

FINANCE = ("--domain", "finance")


def run(*words: str, **environment: str) -> Done:
    return cli("calibrate", *words, **{"KP_DATABASE_URL": "runs.db", **environment})


def parsed(*words: str) -> dict[str, Any]:
    (line,) = run(*words, "--json").stdout.splitlines()
    values: dict[str, Any] = json.loads(line)
    return values


def shown() -> str:
    done = run("show")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TraceStore]:
    """Makes `runs.db` in the working folder with a domain whose verdicts can be learned."""
    folder = tmp_path_factory.mktemp("judged")

    def copy(**options: Any) -> TraceStore:
        made = folder / f"{sorted(options.items())}.db"
        if not made.exists():
            with TraceStore(made) as store:
                fill(store, "finance", **options)
        shutil.copy(made, "runs.db")
        return TraceStore("runs.db")

    return copy


@pytest.fixture
def store(filled: Callable[..., TraceStore]) -> Iterator[TraceStore]:
    with filled() as store:
        yield store


@pytest.fixture
def fitted(store: TraceStore) -> TraceStore:
    """The same with its model in force."""
    assert run(*FINANCE).returncode == 0
    return store


def change(statement: str, *values: Any) -> None:
    """Change the database as another program would."""
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute(statement, values)


# Fitting, and what is said of it.


def test_a_model_that_tells_more_is_installed_and_what_is_shown_is_what_was_fitted(
    store: TraceStore,
) -> None:
    done = run(*FINANCE)
    assert done.returncode == 0, done.stderr
    model = store.models.in_force("finance")
    assert model is not None
    area = f"{model.auc:.2f} ({model.auc_low:.2f} to {model.auc_high:.2f})"
    assert area in done.stdout
    assert "Installed; running processes use it within a minute." in done.stdout
    assert (
        "so finance now keeps its best 10%; a threshold in kp.toml would replace that"
        in done.stdout
    )
    assert "90 verdicts on 30 different tasks" in done.stdout
    assert f"  It leans on: {', '.join(model.leans_on)}.\n" in done.stdout
    values = parsed(*FINANCE)
    assert values["brier"] < values["base_brier"] < values["default_brier"]
    proposal = values["gate_proposal"]
    assert proposal["in_force"] is None  # on these runs, the model in force is not held out
    for estimate in (values["auc"], proposal["with_model"]["auc"]):
        assert f"{estimate['value']:.2f} (" in done.stdout
    assert values["leans_on"] == list(model.leans_on)
    assert "The present model stays in force: nothing has changed since." in run(*FINANCE).stdout
    assert not Path("kp.toml").exists()
    assert "provisional" not in done.stdout + shown()
    prior = "Before any verdict, all weights were taken to be near 0"
    assert prior in done.stdout
    assert prior in shown()


def test_a_model_of_few_verdicts_is_provisional(filled: Callable[..., TraceStore]) -> None:
    with filled(runs=45):
        done = run(*FINANCE)
    assert "Installed;" in done.stdout
    assert (
        "  It is provisional until there are 50 verdicts; give more: kp-langchain label next\n"
        in done.stdout
    )
    assert ", provisional: calibrated on 45 runs, AUC " in shown()


def test_the_prior_of_agreement_is_told(fitted: TraceStore) -> None:
    model = fitted.models.in_force("finance")
    assert model is not None
    term = replace(model.terms[0], feature="agreement")
    fitted.models.install(replace(model, terms=(term,)))
    assert "agreement with other runs of a task was taken to weigh 0.25 ± 0.4 (" in shown()


def test_the_proposed_gate_is_held_against_no_gate_and_the_one_in_force(store: TraceStore) -> None:
    proposal = parsed("--dry-run")["gate_proposal"]
    text = run("--dry-run").stdout
    proposed = proposal["proposed"]
    assert (proposed["gate"], proposed["pass_rate"]) == ("worth", 0.1)
    assert re.search(rf"none +100% +{proposal['base_rate']:.2f}", text)
    assert re.search(r"in force: score from 0.61 or 0.68 +\d+%", text)
    assert re.search(r"with this model: the best 10% by score +\d+%", text)
    right = f"{proposed['right']['value']:.2f}"
    assert re.search(rf"proposed: the best 10% by worth +\d+% +{right} \(", text)
    assert "Not installed: this is only a trial." in text
    assert store.models.installed() == []
    kept = parsed("--dry-run", "--pass-rate", "0.3")["gate_proposal"]["proposed"]["kept"]
    assert proposed["kept"] <= 0.1 < kept <= 0.3
    assert re.search(r"instead: the best 30% by worth +\d+%", text)


def test_verdicts_by_chance_are_refused_and_leave_what_is_in_force(fitted: TraceStore) -> None:
    fill(fitted, "code", telling=False, seed=1)
    text = run().stdout.split("finance:")[0]
    assert "Not installed: on tasks it never saw" in text
    assert "leans on" not in text
    model = fitted.models.in_force("finance")
    assert model is not None
    old = replace(model, domain="code")
    fitted.models.install(old)
    done = run("--domain", "code", "--write")
    assert done.returncode == 1
    for message in (
        "Not installed, the present model stays in force: ",
        "No gate is proposed: the model is refused.",
        "Nothing was written, because the model was refused.",
    ):
        assert message in done.stdout
    assert fitted.models.in_force("code") == old
    assert not Path("kp.toml").exists()
    assert run("--write").returncode == 0  # of both domains, one has a gate to write
    assert [Settings().policy_for(domain).gate for domain in ("finance", "code")] == [
        "worth", "score",
    ]  # fmt: skip


def test_more_verdicts_make_another_model(fitted: TraceStore) -> None:
    (first,) = fitted.models.installed("finance")
    fill(fitted, "finance", seed=2)
    done = run(*FINANCE)
    words = f"Installed in place of the present one (AUC {first.auc:.2f}); running"
    assert words in done.stdout
    assert shown().count("finance: fitted on ") == 1


def test_too_few_verdicts(filled: Callable[..., TraceStore]) -> None:
    filled(runs=3).close()
    done = run("--write")
    assert done.returncode == 1
    assert "3 verdicts; at least 10 are needed" in done.stdout
    assert "Nothing was written, because the model was refused." in done.stdout
    assert "Threshold" not in done.stdout
    assert not Path("kp.toml").exists()
    assert "did you mean finance?" in run("--domain", "fianance").stderr


def test_models_are_shown_and_removed(store: TraceStore) -> None:
    assert "No model in" in shown()
    assert "No model of domain 'law' in" in run("show", "--domain", "law").stdout
    run()
    model = store.models.in_force("finance")
    assert model is not None
    text = run("show", *FINANCE).stdout
    assert f", {model.source}; in force\n" in text
    assert f"  It leans on: {', '.join(model.leans_on)}\n" in text
    values = parsed("show")
    assert values["model"] == model.to_dict()
    assert "The model of finance is out of force" in run("remove", "finance").stdout
    assert store.models.in_force("finance") is None
    assert "No model in" in shown()
    assert run("remove", "finance").returncode == 1
    assert run(*FINANCE).returncode == 0
    assert len(store.models.installed("finance")) == 1


def test_a_model_that_something_else_changed_is_named_and_can_be_replaced(
    fitted: TraceStore,
) -> None:
    change("update models set body = '{}'")
    for words in ((), ("show",)):
        message = run(*words).stderr
        assert "the model of domain 'finance' cannot be read" in message
        assert "kp-langchain calibrate remove finance (" in message
        assert "https:" not in message
    assert run("remove", "finance").returncode == 0
    assert "Installed; running" in run().stdout


def test_an_outdated_model_is_called_so(fitted: TraceStore) -> None:
    model = fitted.models.in_force("finance")
    assert model is not None
    fitted.models.install(replace(model, features_version=99))
    assert "  outdated and not used; fit it again: kp-langchain calibrate" in shown()
    assert "Installed in place of" in run(*FINANCE).stdout


@pytest.mark.parametrize("library", ["scipy.stats", "sklearn.model_selection"])
def test_a_library_that_is_missing_is_named(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    done = run(*FINANCE, "--write")
    assert done.returncode == 1
    assert "pip install 'kp-langchain[calibrate]'" in done.stderr


# Verdicts that came later, and runs that the gate has kept.


def judge_later(store: TraceStore, *, are_opposite: bool) -> None:
    """Add runs with verdicts after the model was fitted, perhaps all the other way round."""
    known = {one.trace_id for one in store.runs(limit=None)}
    fill(store, "finance", runs=60, seed=7)
    for one in store.runs(limit=None):
        if are_opposite and one.trace_id not in known:
            (verdict,) = store.verdicts(one.trace_id)
            store.report_outcome(one.trace_id, success=not verdict.success)


def test_a_model_is_held_against_later_verdicts(fitted: TraceStore) -> None:
    assert "  0 verdicts since it was fitted; it is compared with them" in shown()
    assert parsed("show")["later_verdicts"]["holds"] is None
    judge_later(fitted, are_opposite=False)
    later = parsed("show")["later_verdicts"]
    assert (later["runs"], later["holds"]) == (50, True)
    assert f"  it holds: promised Brier score {later['promised_brier']:.3f}" in shown()


def test_a_model_that_no_longer_holds_is_named_with_what_to_do(
    fitted: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_later(fitted, are_opposite=True)
    later = parsed("show")["later_verdicts"]
    assert (later["holds"], later["auc"] < 0.5) == (False, True)
    text = shown()
    assert f"  it no longer holds: promised Brier score {later['promised_brier']:.3f}" in text
    assert "succeeded; fit it again: kp-langchain calibrate --domain finance\n" in text
    with monkeypatch.context() as patch:  # which compares the two
        patch.setitem(sys.modules, "scipy.stats", None)
        assert "it no longer holds" not in shown()
        assert parsed("show")["later_verdicts"] is None
    # Where nothing better can be fitted, it can be taken out of force.
    for at, one in enumerate(fitted.runs(limit=None)):
        statement = "update verdicts set success = ?1, confidence = ?1 where trace_id = ?2"
        change(statement, at % 2, one.trace_id)
    done = run(*FINANCE)
    assert done.returncode == 1
    assert "Not installed, the present model stays in force" in done.stdout
    assert "The present model, which stays: it no longer holds: promised " in done.stdout
    assert "take it out of force: kp-langchain calibrate remove finance." in done.stdout


# What is written into kp.toml.


def test_what_is_proposed_is_written_only_on_request(store: TraceStore) -> None:
    before = "# ours\n\n[domains.finance]\nkeep = 'all' # both\n"
    Path("kp.toml").write_text(before)
    assert parsed(*FINANCE)["written"] is None
    assert Path("kp.toml").read_text() == before
    done = run(*FINANCE, "--write")
    assert done.returncode == 0
    path = Path("kp.toml").absolute()
    assert f'Wrote gate = "worth" and pass_rate = 0.1 of finance into {path}.' in done.stdout
    text = Path("kp.toml").read_text()
    assert all(line in text.splitlines() for line in before.splitlines())
    policy = Settings().policy_for("finance")
    assert (policy.gate, policy.pass_rate, policy.keep) == ("worth", 0.1, "all")
    # What is in force now is what would be proposed, and nothing changes any more.
    before_again = Path("kp.toml").stat()
    again = run(*FINANCE, "--write")
    assert (again.returncode, Path("kp.toml").stat()) == (0, before_again)
    assert "The present model stays in force: nothing has changed since." in again.stdout
    assert "in force, with this model: the best 10% by worth" in again.stdout
    in_force = 'gate = "worth" and pass_rate = 0.1 of finance was already in force'
    assert f"Nothing changed: {in_force}." in again.stdout
    assert "--write" not in run(*FINANCE).stdout


def test_a_variable_that_comes_first_is_told(store: TraceStore) -> None:
    variable = {"KP_DOMAINS__FINANCE__PASS_RATE": "0.33"}
    done = run(*FINANCE, "--write", **variable)
    assert "in force: the best 33% by score" in done.stdout
    assert (
        "It has no effect here: a variable of the environment sets another pass_rate."
        in done.stdout
    )
    done = run(*FINANCE, "--write", "--json", **variable)
    assert json.loads(done.stdout)["written"] == {
        "path": "kp.toml",
        "overridden": ["pass_rate"],
    }


def test_a_file_that_cannot_be_written_does_not_hide_what_was_installed(store: TraceStore) -> None:
    done = run(*FINANCE, "--write", KP_CONFIG="/dev/null")
    assert done.returncode == 1
    assert "/dev/null is not a file" in done.stderr
    assert "Installed; running" in done.stdout
    assert "Wrote" not in done.stdout


VALUES: dict[str, Any] = {"gate": "worth", "pass_rate": 0.1}
AS_PEOPLE_WRITE = """\
max_steps = 7

[domains.finance]  # ours
pass_rate = 0.5  # for now
keep = 'all'

# what else to hide
[redaction]
names = ['employee number']
"""


def test_everything_but_what_is_written_stays() -> None:
    new = with_policy(AS_PEOPLE_WRITE, "finance", VALUES)
    assert new == AS_PEOPLE_WRITE.replace("pass_rate = 0.5  # for now\n", "").replace(
        "# ours\n", '# ours\ngate = "worth"\npass_rate = 0.1\n'
    )
    assert with_policy(new, "finance", VALUES) == new
    fixed = {"gate": "worth", "worth_threshold": 0.625, "pass_rate": None}
    without = with_policy(new, "finance", fixed)
    assert "worth_threshold = 0.625" in without
    assert "pass_rate" not in without
    added = '\n[domains.code]\ngate = "worth"\npass_rate = 0.1\n'
    assert with_policy(AS_PEOPLE_WRITE, "code", VALUES) == AS_PEOPLE_WRITE + added
    assert Settings.supposing(new).policy_for("finance").pass_rate == 0.1


@pytest.mark.parametrize(
    "text",
    [
        "domains = { finance = { keep = 'all' } }\n",
        "domains.finance.pass_rate = 0.5\n",
        "[domains]\nfinance = { pass_rate = 0.5 }\n",
        "[domains]\nfinance.pass_rate = 0.5\n",
        '[redaction]\nnames = ["""\n[domains.finance]\npass_rate = 1"""]\n',
        "[domains.finance]\npass_rate = 0.5\nkeep = 'all'\n\"gate\" = 'score'\n",
    ],
)
def test_a_layout_that_cannot_be_changed_is_left_and_what_to_write_is_said(text: str) -> None:
    tomllib.loads(text)
    with pytest.raises(ConfigError, match=r'write this by hand:\n\[domains.finance\]\ngate = "wor'):
        with_policy(text, "finance", VALUES)


@given(domain=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_domain_can_be_named(domain: str) -> None:
    new = with_policy("[defaults] # ours\n", domain, VALUES)
    assert new.startswith("[defaults] # ours\n")
    assert Settings.supposing(new).policy_for(domain).pass_rate == 0.1
    assert with_policy(new, domain, VALUES) == new


def test_a_file_is_its_owners_and_a_link_stays_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_policy("finance", threshold=0.625)
    assert (written.path, written.overridden) == ("kp.toml", ())
    assert Path("kp.toml").read_text() == "[domains.finance]\nthreshold = 0.625\n"
    assert stat.S_IMODE(Path("kp.toml").stat().st_mode) == 0o600
    (folder / "etc").mkdir()
    real = folder / "etc" / "real.toml"
    real.write_text("api_key = 'kp_x' # mine\n")
    Path("link.toml").symlink_to("etc/real.toml")
    monkeypatch.setenv("KP_CONFIG", "link.toml")
    write_policy("finance", threshold=0.25)
    assert Settings().policy_for("finance").threshold == 0.25
    assert Path("link.toml").is_symlink()
    assert real.read_text().startswith("api_key = 'kp_x' # mine\n")
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["real.toml"]


@pytest.mark.parametrize(
    ("content", "threshold", "complaint"),
    [
        (b"max_steps = \n", 0.6, "is not valid TOML"),
        (b"\xff = 1\n", 0.6, "is not UTF-8 text"),
        (b"[domains.finance]\ntreshold = 0.5\n", 0.6, "did you mean threshold"),
        (b"[domains.finance]\nkeep = 'all'\n", 1.5, r"kp\.toml is unchanged, because with the"),
    ],
)
def test_a_file_or_a_change_that_cannot_be_used_leaves_it_as_it_was(
    content: bytes, threshold: float, complaint: str
) -> None:
    Path("kp.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        write_policy("finance", threshold=threshold)
    assert Path("kp.toml").read_bytes() == content
