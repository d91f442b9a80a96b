"""Settings: where a value comes from, and what is said of one that cannot be used."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.config import (
    DEFAULT_THRESHOLDS,
    DomainPolicy,
    Settings,
    data_dir,
    load_settings,
    mask_password,
)
from kp_langchain.errors import ConfigError
from kp_langchain.scoring.weights import ScoringWeights

EVEN = {"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory without kp.toml, and an environment without KP_ variables."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("KP_"):
            monkeypatch.delenv(name)
    return tmp_path


def refusal(**arguments):
    with pytest.raises(ConfigError) as caught:
        load_settings(**arguments)
    return str(caught.value)


class TestWhereValuesComeFrom:
    def test_defaults(self):
        found = load_settings()
        assert found == Settings()
        assert found.model_dump() == {
            "database_url": None,
            "embedding_model": None,
            "disabled": False,
            "agent_id": None,
            "defaults": DomainPolicy().model_dump(),
            "domains": {},
            "max_text_chars": 4000,
            "max_steps": 1000,
            "max_open_runs": 1000,
            "max_paused_runs": 1000,
            "max_queue": 1000,
            "run_timeout_s": 3600.0,
            "exit_timeout_s": 10.0,
        }

    def test_arguments_over_environment_over_file_over_defaults(self, folder, monkeypatch):
        assert load_settings().max_steps == 1000
        (folder / "kp.toml").write_text("max_steps = 10\nmax_queue = 10\nmax_open_runs = 10")
        assert load_settings().max_steps == 10
        monkeypatch.setenv("KP_MAX_STEPS", "20")
        monkeypatch.setenv("KP_MAX_QUEUE", "20")
        assert load_settings().max_steps == 20
        found = load_settings(max_steps=30)
        assert (found.max_steps, found.max_queue, found.max_open_runs) == (30, 20, 10)
        assert found.max_paused_runs == 1000

    def test_every_field_can_be_set_in_the_file_and_in_the_environment(self, folder, monkeypatch):
        wanted = {
            "database_url": "postgresql://h/db",
            "embedding_model": "some/model",
            "disabled": True,
            "agent_id": "kp:agent:me",
            "max_text_chars": 1,
            "max_steps": 2,
            "max_open_runs": 3,
            "max_paused_runs": 4,
            "max_queue": 5,
            "run_timeout_s": 6.5,
            "exit_timeout_s": 0.5,
        }
        assert {*wanted, "defaults", "domains"} == set(Settings.model_fields)
        lines = [
            f"{name} = {str(value).lower() if value is True else repr(value)}"
            for name, value in wanted.items()
        ]
        (folder / "kp.toml").write_text("\n".join(lines))
        assert load_settings().model_dump(include=set(wanted)) == wanted
        (folder / "kp.toml").unlink()
        for name, value in wanted.items():
            monkeypatch.setenv(f"KP_{name.upper()}", str(value))
        assert load_settings().model_dump(include=set(wanted)) == wanted

    def test_policies_merge_key_by_key(self, folder, monkeypatch):
        (folder / "kp.toml").write_text(
            '[defaults]\nvisibility = "org"\nkeep = "all"\n'
            '[domains.finance]\nthreshold = 0.7\nprivacy_level = "private"\n'
        )
        monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.8")
        monkeypatch.setenv("KP_DEFAULTS__KEEP", "passed")
        found = load_settings(domains={"finance": DomainPolicy(visibility="network")})
        assert found.policy_for("finance") == DomainPolicy(
            threshold=0.8, visibility="network", privacy_level="private", keep="passed"
        )
        assert found.policy_for("code").visibility == "org"

    def test_arguments_may_be_policies_or_tables_and_none_is_not_given(self, folder):
        (folder / "kp.toml").write_text('agent_id = "a"\n[defaults]\nkeep = "all"\nthreshold = 0.5')
        found = load_settings(
            agent_id=None,
            defaults=DomainPolicy(visibility="org", threshold=None),
            domains={"x": {"weights": EVEN}, "y": DomainPolicy(weights=ScoringWeights(**EVEN))},
        )
        assert found.agent_id == "a"
        assert found.defaults == DomainPolicy(visibility="org", keep="all", threshold=0.5)
        assert found.policy_for("x").weights == found.policy_for("y").weights

    @pytest.mark.parametrize(
        ("in_file", "variable", "domain"),
        [
            (None, "FINANCE", "finance"),
            (None, "CUSTOMER_SERVICE", "customer_service"),
            (None, "Legal", "legal"),
            ("Legal", "LEGAL", "Legal"),
            ("claims-eu", "CLAIMS_EU", "claims-eu"),
            ("customer service", "CUSTOMER_SERVICE", "customer service"),
            ("Finance", "finance", "Finance"),
        ],
    )
    def test_variables_name_domains_without_regard_to_case(
        self, folder, monkeypatch, in_file, variable, domain
    ):
        if in_file:
            (folder / "kp.toml").write_text(f'[domains."{in_file}"]\nkeep = "all"\n')
        monkeypatch.setenv(f"KP_DOMAINS__{variable}__THRESHOLD", "0.123")
        policy = load_settings().policy_for(domain)
        assert policy.threshold == 0.123
        assert policy.keep == ("all" if in_file else "passed")

    def test_a_variable_may_hold_a_table_as_json(self, monkeypatch):
        monkeypatch.setenv("KP_DOMAINS", '{"finance": {"threshold": 0.1, "keep": "all"}}')
        monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS", ScoringWeightsJson)
        monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.2")
        assert load_settings().policy_for("finance") == DomainPolicy(
            threshold=0.2, keep="all", weights=ScoringWeights(**EVEN)
        )

    def test_single_weights_can_be_overridden(self, folder, monkeypatch):
        (folder / "kp.toml").write_text(
            "[domains.code.weights]\ncomplexity = 0.25\nnovelty = 0.25\n"
            "tool_diversity = 0.25\noutcome_confidence = 0.25\n"
        )
        monkeypatch.setenv("KP_DOMAINS__CODE__WEIGHTS__NOVELTY", "0.5")
        monkeypatch.setenv("KP_DOMAINS__CODE__WEIGHTS__COMPLEXITY", "0")
        assert load_settings().policy_for("code").weights == ScoringWeights(0, 0.5, 0.25, 0.25)

    def test_empty_variables_and_those_of_others_are_ignored(self, monkeypatch):
        monkeypatch.setenv("KP_DATABASE_URL", "")
        monkeypatch.setenv("KP_CONFIG", "")
        monkeypatch.setenv("KP_TELEMETRY", "nonsense")
        monkeypatch.setenv("KP_", "x")
        monkeypatch.setenv("KP___X", "x")
        assert load_settings() == Settings()

    def test_another_file_by_variable(self, folder, monkeypatch):
        (folder / "kp.toml").write_text("max_steps = 1")
        (folder / "other.toml").write_text("max_queue = 2")
        monkeypatch.setenv("KP_CONFIG", str(folder / "other.toml"))
        assert (load_settings().max_steps, load_settings().max_queue) == (1000, 2)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("KP_CONFIG", "~/other.toml")
        assert load_settings().max_queue == 2


ScoringWeightsJson = (
    '{"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}'
)


class TestPolicies:
    def test_every_policy_is_resolved(self):
        found = Settings()
        for domain, threshold in DEFAULT_THRESHOLDS.items():
            assert found.policy_for(domain) == DomainPolicy(threshold=threshold)
        assert found.policy_for("unheard of").threshold == DEFAULT_THRESHOLDS["default"]

    def test_names_of_domains_are_exact(self):
        found = Settings(domains={"Finance": DomainPolicy(threshold=0.1)})
        assert found.policy_for("Finance").threshold == 0.1
        assert found.policy_for("finance").threshold == DEFAULT_THRESHOLDS["finance"]

    def test_merging_tells_given_from_not_given(self):
        base = DomainPolicy(threshold=0.5, visibility="org", keep="all")
        over = DomainPolicy(visibility="private", weights=None)
        merged = over.merged_over(base)
        assert merged == DomainPolicy(threshold=0.5, visibility="private", keep="all")
        assert merged.model_fields_set == {"threshold", "visibility", "keep"}
        assert DomainPolicy().merged_over(base) == base

    @given(
        st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "threshold": st.none() | st.floats(0, 1),
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
        with pytest.raises(ValidationError):
            Settings(max_step=1)


class TestFaults:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("max_steps = 0", "max_steps = 0: expected a whole number above 0"),
            ("max_steps = true", "max_steps = True: expected a whole number above 0"),
            ("max_queue = 1.5", "max_queue = 1.5: expected a whole number above 0"),
            ("run_timeout_s = inf", "run_timeout_s = inf: expected seconds above 0, at most"),
            ("exit_timeout_s = -1", "exit_timeout_s = -1: expected seconds above 0"),
            ("disabled = 'maybe'", "disabled = 'maybe': expected true or false"),
            ("agent_id = 7", "agent_id = 7: expected text such as kp:agent:<id>"),
            ("defaults = 3", r"defaults = 3: expected a table: \[defaults\]"),
            ("domains = 3", r"domains = 3: expected a table for each domain: \[domains.<name>\]"),
            ("domains.x = 3", r"domains.x = 3: expected a table for each domain"),
            ("domains.''.keep = 'all'", "domains"),
            (
                "domains.x.threshold = 1.5",
                "domains.x.threshold = 1.5: expected a number from 0 to 1",
            ),
            (
                "domains.x.threshold = nan",
                "domains.x.threshold = nan: expected a number from 0 to 1",
            ),
            ("domains.x.threshold = true", "domains.x.threshold = True: expected a number from"),
            ("domains.x.threshold = []", r"domains.x.threshold = \[\]: expected a number from"),
            ("defaults.keep = 'some'", "defaults.keep = 'some': expected 'passed' or 'all'"),
            (
                "defaults.visibility = 'public'",
                "= 'public': expected one of 'private', 'org', 'net",
            ),
            ("defaults.privacy_level = 'none'", "= 'none': expected one of 'aggregated', 'feder"),
            (
                "domains.x.weights = 3",
                "domains.x.weights = 3: expected complexity, novelty, tool_d",
            ),
            ("domains.x.weights.novelty = 'a'", "domains.x.weights.novelty = 'a': expected compl"),
            ("domains.x.weights.novelty = 1.0", "domains.x.weights.complexity is missing"),
            (
                "domains.x.weights.novelti = 1.0",
                r"novelti = 1.0: unknown key; did you mean novelty\?",
            ),
            ("max_step = 1", r"max_step = 1: unknown key; did you mean max_steps\?"),
            (
                "domains.x.treshold = 1",
                r"domains.x.treshold = 1: unknown key; did you mean threshold",
            ),
            (
                "defaults.zzz = 1",
                "defaults.zzz = 1: unknown key; known here: threshold, weights, vis",
            ),
            ("finance.threshold = 1", "finance = .*: unknown key; known here: database_url, emb"),
        ],
    )
    def test_a_fault_in_the_file(self, folder, line, expected):
        (folder / "kp.toml").write_text(line)
        assert re.search(f"^  kp.toml: .*{expected}", refusal(), re.MULTILINE)

    def test_weights_that_do_not_sum_to_one(self, folder):
        (folder / "kp.toml").write_text(
            "domains.x.weights = {complexity=0.5, novelty=0.5, tool_diversity=0.5, "
            "outcome_confidence=0}"
        )
        assert re.search(r"kp.toml: domains.x.weights = .*sum to 1.5; they must sum", refusal())

    def test_a_fault_in_the_environment_names_the_variable(self, monkeypatch):
        monkeypatch.setenv("KP_MAX_QUEUE", "many")
        monkeypatch.setenv("KP_DOMAINS__FINANCE__TRESHOLD", "0.5")
        monkeypatch.setenv("KP_DEFAULT__KEEP", "all")
        monkeypatch.setenv("KP_DEFAULTS__WEIGHTS", '{"complexity": ')
        message = refusal()
        for line in (
            "environment variable KP_MAX_QUEUE: max_queue = 'many': expected a whole number",
            "environment variable KP_DOMAINS__FINANCE__TRESHOLD: domains.finance.treshold = '0.5': "
            "unknown key; did you mean threshold?",
            "environment variable KP_DEFAULT__KEEP: default = {'keep': 'all'}: unknown key; "
            "did you mean defaults?",
            "environment variable KP_DEFAULTS__WEIGHTS: defaults.weights = '{\"complexity\": '",
        ):
            assert f"\n  {line}" in message
        assert message.count("\n") == 4

    def test_a_fault_in_an_argument_names_it(self):
        message = refusal(tresh=1, max_steps="x", domains={"a": {"keep": 1}, 7: DomainPolicy()})
        assert "\n  argument tresh: tresh = 1: unknown key; known here: " in message
        assert "\n  argument max_steps: max_steps = 'x': expected a whole number" in message
        assert "\n  argument domains: domains.a.keep = 1: expected 'passed' or 'all'" in message
        assert "\n  argument domains: domains.7" in message

    def test_the_layer_that_gave_the_value_is_blamed(self, folder, monkeypatch):
        (folder / "kp.toml").write_text("max_steps = 0\n[domains.code]\nthreshold = 2\nkeep = 'x'")
        monkeypatch.setenv("KP_DOMAINS__CODE__THRESHOLD", "3")
        message = refusal(max_steps=-1)
        assert "argument max_steps: max_steps = -1" in message
        assert "environment variable KP_DOMAINS__CODE__THRESHOLD: domains.code.threshold" in message
        assert "kp.toml: domains.code.keep = 'x'" in message

    def test_the_named_file_is_blamed_by_its_path(self, folder, monkeypatch):
        (folder / "other.toml").write_text("max_steps = 0")
        monkeypatch.setenv("KP_CONFIG", str(folder / "other.toml"))
        assert f"  {folder / 'other.toml'}: max_steps = 0: expected" in refusal()

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"max_steps = 1\nmax_queue = \n", r"kp.toml is not valid TOML: .*line 2"),
            (b"a = 1\nb = [1,\n", r"kp.toml is not valid TOML: .*line 3"),
            (b"a = 1\na = 2\n", r"kp.toml is not valid TOML: .*line 2"),
            (b"a = 1\nb = '\xff'\n", r"kp.toml is not UTF-8 text at line 2; save it as UTF-8"),
            (b"a = " + b"[" * 5000, r"kp.toml is not valid TOML: it is nested too deeply"),
            (b"\0", r"kp.toml is not valid TOML: .*line 1"),
        ],
    )
    def test_a_file_that_is_not_toml(self, folder, content, expected):
        (folder / "kp.toml").write_bytes(content)
        assert re.search(expected, refusal())

    def test_a_file_that_cannot_be_read(self, folder, monkeypatch):
        (folder / "kp.toml").mkdir()
        assert re.match("kp.toml cannot be read: .*; make it a readable file, or remove", refusal())
        monkeypatch.setenv("KP_CONFIG", str(folder / "gone.toml"))
        gone = f"{folder / 'gone.toml'} (named by KP_CONFIG) does not exist; create it or unset"
        assert refusal() == f"{gone} KP_CONFIG"
        monkeypatch.setenv("KP_CONFIG", str(folder / ("x" * 5000)))
        assert "(named by KP_CONFIG) cannot be read" in refusal()

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://me:s3cret@host/db",
            "postgresql://me:s3c@ret@host/db",
            "postgresql://host/db?user=me&password=s3cret",
            "postgresql://me:s3/ret@host/db?sslpassword=s3cret",
        ],
    )
    def test_no_password_is_shown(self, url, monkeypatch):
        for arguments in (
            {"database_url": [url]},
            {"database_url": {"url": url}},
            {"databaseurl": url},
            {"domains": {"x": url}},
        ):
            message = refusal(**arguments)
            assert "s3" not in message
            assert "host" in message
        monkeypatch.setenv("KP_DATABSE_URL", url)
        assert "s3" not in refusal()
        assert "s3" not in repr(Settings(database_url=url))

    def test_no_value_of_a_secret_key_is_shown(self, folder):
        (folder / "kp.toml").write_text('[defaults]\napi_key = "sk-1"\nAuthToken = "sk-2"')
        message = refusal()
        assert "api_key = ***" in message
        assert "sk-" not in message

    def test_values_that_cannot_be_shown_or_are_long(self):
        class Rude:
            def __repr__(self):
                raise RuntimeError("no")

        assert "max_steps = <Rude>: expected" in refusal(max_steps=Rude())
        assert len(refusal(max_steps="9" * 10**6)) < 400
        endless: dict = {}
        endless["x"] = endless
        assert "domains" in refusal(domains=endless)

    def test_the_error_hides_pydantic_s_own(self, folder):
        (folder / "kp.toml").write_text("max_steps = 0")
        with pytest.raises(ConfigError) as caught:
            load_settings()
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


def attempt(**arguments):
    try:
        return load_settings(**arguments), ""
    except ConfigError as error:
        return None, str(error)


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([*DomainPolicy.model_fields, *EVEN, "finance", "x"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Settings.model_fields, "other"]), HOSTILE, max_size=4))
def test_arguments_give_settings_or_a_config_error(arguments):
    found, message = attempt(**arguments)
    assert (found is None) == ("\n  argument " in message)
    if found:
        for domain in [*found.domains, "anything"]:
            assert 0 <= found.policy_for(domain).threshold <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_a_file_gives_settings_or_a_config_error(folder, content):
    (folder / "kp.toml").write_bytes(content)
    found, message = attempt()
    assert (found is None) == ("kp.toml" in message)


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
    expected = float(levels[present[-1]]) if present else DEFAULT_THRESHOLDS["code"]
    assert load_settings(**arguments).policy_for("code").threshold == expected


def test_mask_password_leaves_other_text_alone():
    for text in ("no url", "postgresql://host/db", "postgresql://me@host:5432/db", "a:b@c", ""):
        assert mask_password(text) == text


def test_the_data_folder_is_named_but_not_made(monkeypatch, folder):
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "share"))
        assert data_dir() == folder / "share" / "kp_langchain"
    assert not (folder / "share").exists()


def test_importing_it_loads_nothing_heavy():
    program = (
        "import sys; import kp_langchain.config as c; c.load_settings();"
        "print(sorted({'numpy', 'sqlalchemy', 'langchain_core', 'torch', 'httpx', 'tomllib'}"
        " & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    out = subprocess.run(  # noqa: S603  (this file's own program)
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"
