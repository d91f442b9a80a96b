"""Settings: where a value comes from, and how policies merge."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.config import (
    DomainPolicy,
    Settings,
    data_dir,
)
from kp_langchain.errors import ConfigError
from kp_langchain.weights import ScoringWeights
from tests.trusting import write_trusted

pytestmark = pytest.mark.usefixtures("default_limits")
EVEN = {"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}


class TestWhereValuesComeFrom:
    def test_defaults(self):
        found = Settings()
        assert found == Settings()
        assert found.model_dump() == {
            "database_url": None,
            "embedding_model": None,
            "embedding_baseline": 0.0,
            "latency_budget_ms": 100.0,
            "novelty_memory": 1000,
            "novelty_ttl_s": None,
            "novelty_scope": "all",
            "step_cap": None,
            "send_scores_to": (),
            "disabled": False,
            "registry_url": None,
            "api_key": None,
            "agent_id": None,
            "redaction": {
                "patterns": {},
                "names": [],
                "allow": [],
                "pseudonym_key": None,
                "redactor": None,
            },
            "run_keys": {
                "session": ("session_id", "conversation_id", "langfuse_session_id"),
                "thread": ("thread_id",),
                "user": ("user_id", "langfuse_user_id"),
                "namespace": ("kp_namespace",),
                "tags": True,
                "name": True,
            },
            "defaults": DomainPolicy().model_dump(),
            "domains": {},
            "max_text_chars": 4000,
            "max_run_chars": 200_000,
            "max_steps": 1000,
            "max_open_runs": 1000,
            "max_paused_runs": 1000,
            "paused_days": 7.0,
            "max_queue": 1000,
            "run_timeout_s": 3600.0,
            "exit_timeout_s": 10.0,
            "function_timeout_s": 10.0,
        }

    def test_arguments_over_environment_over_file_over_defaults(self, folder, monkeypatch):
        assert Settings().max_steps == 1000
        (folder / "kp.toml").write_text("max_steps = 10\nmax_queue = 10\nmax_open_runs = 10")
        assert Settings().max_steps == 10
        monkeypatch.setenv("KP_MAX_STEPS", "20")
        monkeypatch.setenv("KP_MAX_QUEUE", "20")
        assert Settings().max_steps == 20
        found = Settings(max_steps=30)
        assert (found.max_steps, found.max_queue, found.max_open_runs) == (30, 20, 10)
        assert found.max_paused_runs == 1000

    def test_current_settings_follow_every_source(self, folder, monkeypatch):
        assert Settings.current() is Settings.current() == Settings()
        (folder / "kp.toml").write_text("max_steps = 10")
        assert Settings.current().max_steps == 10
        (folder / "kp.toml").write_text("max_steps = 11")
        assert Settings.current().max_steps == 11
        monkeypatch.setenv("kp_max_steps", "20")
        assert Settings.current().max_steps == 20
        monkeypatch.setenv("kp_max_steps", "no number")
        with pytest.raises(ConfigError, match="no number"):
            Settings.current()
        monkeypatch.delenv("kp_max_steps")
        monkeypatch.setenv("KP_CONFIG", str(folder / "other.toml"))
        with pytest.raises(ConfigError, match=r"other\.toml"):
            Settings.current()
        (folder / "other.toml").write_text("max_steps = 12")
        assert Settings.current().max_steps == 12
        monkeypatch.delenv("KP_CONFIG")
        (folder / "kp.toml").unlink()
        assert Settings.current().max_steps == 1000

    def test_every_field_can_be_set_in_the_file_and_in_the_environment(self, folder, monkeypatch):
        wanted = {
            "database_url": "postgresql://h/db",
            "embedding_model": "some/model",
            "embedding_baseline": 0.84,
            "latency_budget_ms": 50.5,
            "novelty_memory": 7,
            "novelty_ttl_s": 3600.5,
            "novelty_scope": "domain",
            "step_cap": 20,
            "disabled": True,
            "registry_url": "https://registry.example.org",
            "agent_id": "kp:agent:me",
            "max_text_chars": 1,
            "max_run_chars": 9,
            "max_steps": 2,
            "max_open_runs": 3,
            "max_paused_runs": 4,
            "paused_days": 0.5,
            "max_queue": 5,
            "run_timeout_s": 6.5,
            "exit_timeout_s": 0.5,
            "function_timeout_s": 1.5,
        }
        others = {"defaults", "domains", "redaction", "run_keys", "api_key", "send_scores_to"}
        assert {*wanted, *others} == set(Settings.model_fields)
        lines = [
            f"{name} = {str(value).lower() if value is True else repr(value)}"
            for name, value in wanted.items()
        ]
        write_trusted("\n".join(lines))
        assert Settings().model_dump(include=set(wanted)) == wanted
        (folder / "kp.toml").unlink()
        for name, value in wanted.items():
            monkeypatch.setenv(f"KP_{name.upper()}", str(value))
        assert Settings().model_dump(include=set(wanted)) == wanted

    def test_tools_are_listed_in_the_file_and_separated_by_commas_in_the_environment(
        self, folder, monkeypatch
    ):
        write_trusted('send_scores_to = ["langsmith", "opik"]')
        assert Settings().send_scores_to == ("langsmith", "opik")
        (folder / "kp.toml").unlink()
        monkeypatch.setenv("KP_SEND_SCORES_TO", "langfuse, mlflow")
        assert Settings().send_scores_to == ("langfuse", "mlflow")

    def test_a_file_that_is_not_trusted_names_no_tools(self, folder):
        (folder / "kp.toml").write_text('send_scores_to = ["langsmith"]')
        assert Settings().send_scores_to == ()

    def test_the_key_is_read_and_never_shown(self, folder, monkeypatch):
        monkeypatch.setenv("KP_API_KEY", "kp_hunter2")
        found = Settings()
        assert found.api_key.get_secret_value() == "kp_hunter2"
        assert "hunter2" not in repr(found) + str(found.model_dump()) + found.model_dump_json()
        (folder / "kp.toml").write_text("api_key = ['kp_hunter2']")
        monkeypatch.delenv("KP_API_KEY")
        with pytest.raises(ConfigError) as caught:
            Settings()
        assert "hunter2" not in str(caught.value)

    def test_policies_merge_key_by_key(self, folder, monkeypatch):
        write_trusted(
            '[defaults]\nvisibility = "org"\nkeep = "all"\n'
            '[domains.finance]\nthreshold = 0.7\nprivacy_level = "federated"\n'
        )
        monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.8")
        monkeypatch.setenv("KP_DEFAULTS__KEEP", "passed")
        found = Settings(domains={"finance": DomainPolicy(visibility="network")})
        assert found.policy_for("finance") == DomainPolicy(
            threshold=0.8, visibility="network", privacy_level="federated", keep="passed"
        )
        assert found.policy_for("code").visibility == "org"

    def test_arguments_may_be_policies_or_tables_and_none_is_not_given(self, folder):
        write_trusted('agent_id = "a"\n[defaults]\nkeep = "all"\nthreshold = 0.5')
        found = Settings(
            agent_id=None,
            defaults=DomainPolicy(visibility="org", threshold=None),
            domains={"x": {"weights": EVEN}, "y": DomainPolicy(weights=ScoringWeights(**EVEN))},
        )
        assert found.agent_id == "a"
        assert found.defaults == DomainPolicy(visibility="org", keep="all", threshold=0.5)
        assert found.policy_for("x").weights == found.policy_for("y").weights

    @pytest.mark.parametrize("variable", ["FINANCE", "finance", "CUSTOMER_SERVICE", "Legal"])
    def test_variables_name_domains_in_lower_case(self, folder, monkeypatch, variable):
        domain = variable.lower()
        (folder / "kp.toml").write_text(f'[domains.{domain}]\nkeep = "all"\n')
        monkeypatch.setenv(f"KP_DOMAINS__{variable}__THRESHOLD", "0.123")
        policy = Settings().policy_for(domain)
        assert policy.threshold == 0.123
        assert policy.keep == "all"

    def test_a_variable_may_hold_a_table_as_json(self, monkeypatch):
        monkeypatch.setenv("KP_DOMAINS", '{"finance": {"threshold": 0.1, "keep": "all"}}')
        monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS", ScoringWeightsJson)
        monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.2")
        assert Settings().policy_for("finance") == DomainPolicy(
            threshold=0.2, keep="all", weights=ScoringWeights(**EVEN)
        )

    def test_single_weights_can_be_overridden(self, folder, monkeypatch):
        (folder / "kp.toml").write_text(
            "[domains.code.weights]\ncomplexity = 0.25\nnovelty = 0.25\n"
            "tool_diversity = 0.25\noutcome_confidence = 0.25\n"
        )
        monkeypatch.setenv("KP_DOMAINS__CODE__WEIGHTS__NOVELTY", "0.5")
        monkeypatch.setenv("KP_DOMAINS__CODE__WEIGHTS__COMPLEXITY", "0")
        assert Settings().policy_for("code").weights == ScoringWeights(0, 0.5, 0.25, 0.25)

    def test_empty_variables_and_those_of_others_are_ignored(self, monkeypatch):
        monkeypatch.setenv("KP_DATABASE_URL", "")
        monkeypatch.setenv("KP_CONFIG", "")
        monkeypatch.setenv("KP_TELEMETRY", "nonsense")
        monkeypatch.setenv("KP_", "x")
        monkeypatch.setenv("KP___X", "x")
        assert Settings() == Settings()

    def test_another_file_by_variable(self, folder, monkeypatch):
        (folder / "kp.toml").write_text("max_steps = 1")
        (folder / "other.toml").write_text("max_queue = 2")
        monkeypatch.setenv("KP_CONFIG", str(folder / "other.toml"))
        assert (Settings().max_steps, Settings().max_queue) == (1000, 2)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("KP_CONFIG", "~/other.toml")
        assert Settings().max_queue == 2


ScoringWeightsJson = (
    '{"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}'
)


class TestPolicies:
    def test_names_of_domains_are_exact(self):
        found = Settings(domains={"Finance": DomainPolicy(threshold=0.1)})
        assert found.policy_for("Finance").threshold == 0.1
        assert found.policy_for("finance") == DomainPolicy()

    def test_merging_tells_given_from_not_given(self):
        base = DomainPolicy(threshold=0.5, visibility="org", keep="all")
        over = DomainPolicy(visibility="private", weights=None)
        merged = over.merged_over(base)
        assert merged == DomainPolicy(threshold=0.5, visibility="private", keep="all")
        assert merged.model_fields_set == {"threshold", "visibility", "keep"}
        assert DomainPolicy().merged_over(base) == base

    @pytest.mark.parametrize("field", ["threshold", "worth_threshold"])
    def test_a_threshold_replaces_a_pass_rate_of_a_layer_below(self, field):
        base = DomainPolicy(pass_rate=0.2)
        merged = DomainPolicy(**{field: 0.5}).merged_over(base)
        assert (getattr(merged, field), merged.pass_rate) == (0.5, None)
        both = DomainPolicy(**{field: 0.5}, pass_rate=0.3).merged_over(base)
        assert both.pass_rate == 0.3
        assert DomainPolicy(visibility="org").merged_over(base).pass_rate == 0.2
        assert base.merged_over(DomainPolicy(**{field: 0.5})).pass_rate == 0.2

    @given(
        st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "threshold": st.none() | st.floats(0, 1),
                    "pass_rate": st.none() | st.floats(0.1, 1),
                    "visibility": st.sampled_from(["private", "org", "network"]),
                    "privacy_level": st.sampled_from(["aggregated", "federated", "private"]),
                    "keep": st.sampled_from(["passed", "all"]),
                },
            ),
            min_size=2,
            max_size=4,
        )
    )
    def test_the_last_layer_that_gives_a_field_decides(self, layers):
        expected = DomainPolicy().model_dump()
        for layer in layers:
            if layer.get("threshold") is not None:
                expected["pass_rate"] = None
            expected.update({name: value for name, value in layer.items() if value is not None})
        merged = DomainPolicy()
        for layer in layers:
            merged = DomainPolicy(**layer).merged_over(merged)
        assert merged.model_dump() == expected
        # Grouping does not matter, only order.
        first, *rest = [DomainPolicy(**layer) for layer in layers]
        for layer in rest:
            first = layer.merged_over(first)
        assert first.merged_over(DomainPolicy()).model_dump() == expected

    def test_policies_and_settings_are_frozen_and_closed(self):
        with pytest.raises(ValidationError):
            DomainPolicy().threshold = 0.1
        with pytest.raises(ValidationError):
            DomainPolicy(treshold=0.1)
        with pytest.raises(ConfigError):
            Settings(max_step=1)
        with pytest.raises(ValidationError):
            Settings().max_steps = 1


SOURCES = ["file", "environment", "argument"]


@pytest.mark.parametrize(
    "present", [chosen for n in range(4) for chosen in itertools.combinations(SOURCES, n)]
)
def test_the_highest_source_present_wins(folder, monkeypatch, present):
    levels = {"file": "0.2", "environment": "0.3", "argument": "0.4"}
    arguments = {}
    if "file" in present:
        (folder / "kp.toml").write_text(f"[domains.code]\nthreshold = {levels['file']}")
    if "environment" in present:
        monkeypatch.setenv("KP_DOMAINS__CODE__THRESHOLD", levels["environment"])
    if "argument" in present:
        arguments["domains"] = {"code": {"threshold": float(levels["argument"])}}
    expected = float(levels[present[-1]]) if present else None
    assert Settings(**arguments).policy_for("code").threshold == expected


def test_the_data_folder_is_named_but_not_made(monkeypatch, folder):
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "share"))
        assert data_dir() == folder / "share" / "kp_langchain"
    assert not (folder / "share").exists()


def test_importing_it_loads_nothing_heavy():
    program = (
        "import sys; import kp_langchain.config as c; c.Settings();"
        "print(sorted({'numpy', 'sqlalchemy', 'langchain_core', 'torch', 'httpx'}"
        " & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"


def test_a_byte_order_mark_is_no_mistake(folder):
    (folder / "kp.toml").write_bytes(b"\xef\xbb\xbfmax_steps = 7\r\n")
    assert Settings().max_steps == 7


def test_what_would_hold_is_told_without_writing(folder):
    (folder / "kp.toml").write_text("max_steps = 7")
    assert Settings.supposing("max_queue = 8").max_queue == 8
    with pytest.raises(ConfigError, match=r"kp\.toml: max_queue = 0"):
        Settings.supposing("max_queue = 0")
    assert (Settings().max_steps, Settings().max_queue) == (7, 1000)
