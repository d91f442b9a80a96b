"""Names that are not known are told once, with the known one that was probably meant."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer, ScoringWeights, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.near_names import near_name
from kp_langchain.weights import PROFILES
from tests.agents import ASK, handler, searching
from tests.cli.test_doctor import row
from tests.commands import cli, cli_apart

VALUE = "never to be shown"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is warned of, line by line."""
    caplog.set_level(logging.WARNING, logger="kp_langchain")

    class Said(list[str]):
        def __iter__(self):
            return iter([record.getMessage() for record in caplog.records])

        def __len__(self) -> int:
            return len(caplog.records)

        def __eq__(self, other: object) -> bool:
            return list(self) == other

        __hash__ = None  # type: ignore[assignment]

    return Said()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Finance", "finance"),
        ("FINANCE ", "finance"),
        ("fianance", "finance"),
        ("finnance", "finance"),
        ("Finnace", "finance"),
        ("customer-service", "customer_service"),
        ("Customer Services", "customer_service"),
        ("medial", "medical"),
        ("defaults", "default"),
        # Names of their own.
        ("finance", None),
        ("legal", None),
        ("finance_eu", None),
        ("eu-finance", None),
        ("code2", None),
        ("decode", None),
        ("support", None),
        ("", None),
        ("___", None),
        ("金融", None),
        ("\ud800", None),
        ("finance" * 1000, None),
    ],
)
def test_the_name_that_was_meant(name: str, meant: str | None) -> None:
    assert near_name(name, PROFILES) == meant


@given(st.text(), st.sets(st.text(max_size=20), max_size=9))
def test_a_name_that_was_meant_is_a_known_one_and_another(name: str, known: set[str]) -> None:
    meant = near_name(name, known)
    assert meant is None or (meant in known and meant != name and name not in known)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("KP_DATABSE_URL", "KP_DATABASE_URL"),
        ("kp_databse_url", "KP_DATABASE_URL"),
        ("KP_EMBEDING_MODEL", "KP_EMBEDDING_MODEL"),
        ("KP_DISABLE", "KP_DISABLED"),
        ("KP_LATENCY_BUDGET", "KP_LATENCY_BUDGET_MS"),
        ("KP_CONFG", "KP_CONFIG"),
        ("KP_THRESHOLD", "KP_DEFAULTS__THRESHOLD"),
        ("KP_DEFAULT__KEEP", "KP_DEFAULTS__KEEP"),
        ("KP_DOMAINS_FINANCE_THRESHOLD", "KP_DOMAINS__FINANCE__THRESHOLD"),
        ("KP_REDACTION_NAMES", "KP_REDACTION__NAMES"),
    ],
)
def test_a_misspelt_variable_is_told_once_and_never_its_value(
    monkeypatch: pytest.MonkeyPatch, said: list[str], variable: str, meant: str
) -> None:
    before = Settings()
    monkeypatch.setenv(variable, VALUE)
    for _ in range(3):
        assert Settings() == Settings.current() == before
        KPCallbackHandler(store=None)
    assert said == [f"{variable} is not a setting and has no effect; did you mean {meant}?"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KP_TELEMETRY", "1"),
        ("KP_CLUSTER_HOST", "1"),
        ("KP_", "x"),
        ("KP___X", "x"),
        ("KP_DATABSE_URL", ""),
        ("KP_MAX_STEPS", "5"),
        ("kp_max_steps", "5"),
        ("KP_DOMAINS", '{"legal": {"keep": "all"}}'),
        ("KP_DOMAINS__FINANCE__THRESHOLD", "0.5"),
        ("KP_DEFAULTS__KEEP", "all"),
        ("KP_REDACTION__NAMES", '["employee number"]'),
    ],
)
def test_variables_of_others_and_those_in_force_are_not_told(
    monkeypatch: pytest.MonkeyPatch, said: list[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    Settings()
    assert said == []


@pytest.mark.parametrize("domain", ["Finance", "fianance", "finance "])
def test_a_misspelt_domain_of_a_handler_is_told_once(said: list[str], domain: str) -> None:
    for _ in range(3):
        watching = handler(domain)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.last() is not None
    (line,) = said
    assert line.startswith(f"domain {domain!r} has no weights, threshold or policy of its own")
    assert "did you mean 'finance'?" in line


def test_a_misspelt_domain_of_a_run_is_told_once(said: list[str]) -> None:
    watching = handler("finance")
    config = {"callbacks": [watching], "metadata": {"kp_domain": "customer-service"}}
    for _ in range(3):
        searching().invoke(ASK, config)
    assert watching.flush(120)
    (line,) = said
    assert "did you mean 'customer_service'?" in line


def test_domains_that_somebody_configured_are_known(folder: Path, said: list[str]) -> None:
    (folder / "kp.toml").write_text("[domains.legal]\nkeep = 'all'\n")
    own = Scorer(embedder=None, profiles={"Code": ScoringWeights(0.25, 0.25, 0.25, 0.25)})
    handler("legal")
    handler("insurance")
    handler("Code", scorer=own)
    handler("Finance", policy={"Finance": DomainPolicy(threshold=0.5)})
    assert said == []
    handler("leagl")
    (line,) = said
    assert "did you mean 'legal'?" in line


def test_a_policy_for_a_misspelt_domain_is_told_once(folder: Path, said: list[str]) -> None:
    (folder / "kp.toml").write_text("[domains.finnance]\nthreshold = 0.4\n")
    assert Settings().policy_for("finnance").threshold == 0.4  # it may be meant
    handler("finnance")
    assert Settings().policy_for("finance").threshold is None
    (line,) = said
    assert "domain 'finnance' has a policy in the settings (domains.finnance)" in line
    assert "did you mean 'finance'?" in line


def test_traces_of_a_misspelt_domain_are_told_when_they_are_scored(folder: Path) -> None:
    trace = {
        "task": {"objective": "Count."},
        "steps": [{"step_id": 0, "type": "thought", "content": "I think."}],
        "outcome": {"result_summary": "done", "confidence": 0.8},
        "metadata": {"task_domain": "Finance", "success": True},
    }
    (folder / "in.jsonl").write_text(f"{json.dumps(trace)}\n" * 3)
    (folder / "sitecustomize.py").write_text(
        "import sys; sys.modules.update(sentence_transformers=None, fastembed=None)"
    )
    done = cli_apart("score", "in.jsonl", PYTHONPATH=f"{folder}:{Path(__file__).parents[1]}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("did you mean 'finance'?") == 1


def test_doctor_shows_none_of_them_as_in_force(folder: Path) -> None:
    (folder / "kp.toml").write_text(
        "max_steps = 9\n[domains.finnance]\nthreshold = 0.4\n[domains.legal]\nkeep = 'all'\n"
    )
    done = cli(
        "doctor",
        columns=200,
        KP_EMBEDDING_MODEL="/no/such/model",
        KP_DATABSE_URL=VALUE,
        KP_TELEMETRY=VALUE,
        KP_MAX_QUEUE="",
        KP_DOMAINS__MEDIAL__KEEP="all",
    )
    said = row(done.stdout, "settings")
    assert "sets max_steps, domains.legal.keep domains.finnance: no run has this domain" in said
    assert "did you mean finance?" in said
    assert "environment: KP_EMBEDDING_MODEL, KP_EXIT_TIMEOUT_S, KP_FUNCTION_TIMEOUT_S domai" in said
    assert "domains.medial: no run has this domain; did you mean medical?" in said
    assert "KP_DATABSE_URL is not a setting; did you mean KP_DATABASE_URL?" in said
    assert said.endswith("KP_TELEMETRY is not a setting")
    assert "KP_MAX_QUEUE" not in said
    assert VALUE not in done.stdout + done.stderr


def test_doctor_shows_a_domain_that_runs_have_as_in_force(folder: Path) -> None:
    watching = handler("finnance", store="runs.db")
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(120)
    (folder / "kp.toml").write_text("[domains.finnance]\nthreshold = 0.4\n")
    done = cli("doctor", "--database", "runs.db", KP_EMBEDDING_MODEL="/no/such/model", columns=200)
    assert "sets domains.finnance.threshold" in row(done.stdout, "settings")


def test_commands_that_find_no_run_of_a_domain_name_the_nearest(folder: Path) -> None:
    watching = handler("finance", store="runs.db", policy=DomainPolicy(threshold=0.0))
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    listed = cli("review", "--domain", "Finance", "--database", "runs.db")
    assert "No run of 1 matches" in listed.stdout
    assert "Did you mean --domain finance?" in listed.stdout
    assert cli("label", scored.trace.id, "--success", "--database", "runs.db").returncode == 0
    refused = cli("calibrate", "--domain", "fianance", "--database", "runs.db")
    assert (refused.returncode, "did you mean finance?" in refused.stderr) == (1, True)


def test_a_misspelt_key_is_an_error_as_before(folder: Path) -> None:
    (folder / "kp.toml").write_text("databse_url = 'x'\n")
    with pytest.raises(ConfigError, match="did you mean database_url"):
        Settings()
