"""What is said of settings that cannot be used, and what is never said."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain.config import (
    DomainPolicy,
    Settings,
    mask_password,
)
from kp_langchain.errors import ConfigError

pytestmark = pytest.mark.usefixtures("default_limits")
EVEN = {"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}


def refusal(**arguments):
    with pytest.raises(ConfigError) as caught:
        Settings(**arguments)
    return str(caught.value)


class TestFaults:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("max_steps = 0", "max_steps = 0: expected a whole number above 0"),
            ("max_steps = true", "max_steps = True: expected a whole number above 0"),
            ("novelty_memory = 0", "novelty_memory = 0: expected a whole number above 0, at most"),
            ("novelty_memory = 1000001", "novelty_memory = 1000001: expected a whole number"),
            ("novelty_ttl_s = 0", "novelty_ttl_s = 0: expected seconds above 0"),
            ("novelty_ttl_s = 'day'", "novelty_ttl_s = 'day': expected seconds above 0"),
            ("novelty_ttl_s = true", "novelty_ttl_s = True: expected seconds above 0"),
            ("novelty_scope = 'run'", "novelty_scope = 'run': expected 'all' or 'domain'"),
            ("step_cap = -1", "step_cap = -1: expected a whole number above 0"),
            ("step_cap = nan", "step_cap = nan: expected a whole number above 0"),
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
                "defaults.zzz = 1: unknown key; known here: threshold, gate, ",
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
        monkeypatch.setenv("KP_DEFAULTS__KEEP", "some")
        message = refusal()
        for line in (
            "environment variable KP_MAX_QUEUE: max_queue = 'many': expected a whole number",
            "environment variable KP_DOMAINS__FINANCE__TRESHOLD: domains.finance.treshold = 0.5: "
            "unknown key; did you mean threshold?",
            "environment variable KP_DEFAULTS__KEEP: defaults.keep = 'some': expected 'passed' or",
        ):
            assert f"\n  {line}" in message
        assert message.count("\n") == 3

    def test_a_variable_that_is_no_json_is_named(self, monkeypatch):
        monkeypatch.setenv("KP_DOMAINS", "{oops")
        assert "an environment variable cannot be read" in refusal()
        assert "domains" in refusal()

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
        assert "s3" not in repr(Settings(database_url=url))
        monkeypatch.setenv("KP_DOMAINS__X__THRESHOLD", url)
        assert "s3" not in refusal()

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
            Settings()
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


def attempt(**arguments):
    try:
        return Settings(**arguments), ""
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
            assert 0 <= (found.policy_for(domain).threshold or 0) <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_a_file_gives_settings_or_a_config_error(folder, content):
    (folder / "kp.toml").write_bytes(content)
    found, message = attempt()
    assert (found is None) == ("kp.toml" in message)


def test_mask_password_leaves_other_text_alone():
    for text in ("no url", "postgresql://host/db", "postgresql://me@host:5432/db", "a:b@c", ""):
        assert mask_password(text) == text
