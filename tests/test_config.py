"""Settings: where a value comes from, how policies merge, and what is said of unusable ones."""

from __future__ import annotations

import itertools
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import DomainPolicy, KPCallbackHandler, ScoringWeights, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.policy import PROFILES
from kp_langchain.text import near_name
from tests.agents import ASK, handler, searching

pytestmark = pytest.mark.usefixtures("default_limits")
EVEN = dict.fromkeys(("complexity", "novelty", "tool_diversity", "outcome_confidence"), 0.25)
EVEN_JSON = str(EVEN).replace("'", '"')


@pytest.fixture
def user_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `KP_CONFIG` names, from which every key counts."""
    path = folder / "user.toml"
    path.touch()
    monkeypatch.setenv("KP_CONFIG", str(path))
    return path


def refusal(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings(**arguments)
    return str(caught.value)


# Where values come from.


def test_defaults() -> None:
    assert Settings().model_dump() == {
        "database_url": None, "embedding_model": None, "embedding_baseline": 0.0,
        "latency_budget_ms": 100.0, "novelty_memory": 1000,
        "step_cap": None, "send_scores_to": (), "disabled": False,
        "registry_url": None, "api_key": None, "agent_id": None,
        "redaction": {"patterns": {}, "names": [], "allow": [], "pseudonym_key": None,
                      "redactor": None},
        "defaults": DomainPolicy().model_dump(), "domains": {}, "max_text_chars": 4000,
        "max_run_chars": 200_000, "max_steps": 1000, "max_open_runs": 1000,
        "prices": {}, "max_paused_runs": 1000, "paused_days": 7.0, "max_queue": 1000,
        "run_timeout_s": 3600.0,
        "exit_timeout_s": 10.0, "function_timeout_s": 10.0,
    }  # fmt: skip


SOURCES = {"user's file": "0.1", "kp.toml": "0.2", "environment": "0.3", "argument": "0.4"}


@pytest.mark.parametrize(
    "present",
    [chosen for n in range(5) for chosen in itertools.combinations(SOURCES, n)],
    ids=" and ".join,
)
def test_the_highest_source_present_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...]
) -> None:
    arguments: dict[str, Any] = {}
    own = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    own.parent.mkdir(parents=True)
    for source in present:
        if source == "environment":
            monkeypatch.setenv("KP_DOMAINS__CODE__THRESHOLD", SOURCES[source])
        elif source == "argument":
            arguments["domains"] = {"code": {"threshold": float(SOURCES[source])}}
        else:
            path = own if source == "user's file" else folder / "kp.toml"
            path.write_text(f"[domains.code]\nthreshold = {SOURCES[source]}\n")
    expected = float(SOURCES[present[-1]]) if present else None
    assert Settings(**arguments).policy_for("code").threshold == expected


def test_current_settings_follow_every_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threshold() -> float | None:
        return Settings.current().policy_for("any").threshold

    assert Settings.current() is Settings.current() == Settings()
    for value in (0.1, 0.11):
        (folder / "kp.toml").write_text(f"[defaults]\nthreshold = {value}")
        assert threshold() == value
    monkeypatch.setenv("kp_defaults__threshold", "0.2")
    assert threshold() == 0.2
    monkeypatch.delenv("kp_defaults__threshold")
    (folder / "other.toml").write_bytes(b"\xef\xbb\xbf[defaults]\r\nthreshold = 0.3")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("KP_CONFIG", "~/other.toml")
    assert threshold() == 0.3
    monkeypatch.delenv("KP_CONFIG")
    (folder / "kp.toml").unlink()
    assert threshold() is None


def test_every_field_can_be_set_in_a_file_and_in_the_environment(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {
        "database_url": "postgresql://h/db", "embedding_model": "some/model",
        "embedding_baseline": 0.84, "latency_budget_ms": 50.5, "novelty_memory": 7,
        "step_cap": 20, "disabled": True,
        "registry_url": "https://registry.example.org", "agent_id": "kp:agent:me",
        "max_text_chars": 1, "max_run_chars": 9, "max_steps": 2, "max_open_runs": 3,
        "max_paused_runs": 4, "paused_days": 0.5, "max_queue": 5, "run_timeout_s": 6.5,
        "exit_timeout_s": 0.5, "function_timeout_s": 1.5, "send_scores_to": ("langfuse", "mlflow"),
    }  # fmt: skip
    tables = {"defaults", "domains", "redaction", "prices", "api_key"}
    assert {*values, *tables} == set(Settings.model_fields)
    lines = []
    for name, value in values.items():
        text = repr(list(value) if isinstance(value, tuple) else value)
        lines.append(f"{name} = {text.lower() if value is True else text}")
    user_file.write_text("\n".join(lines))
    assert Settings().model_dump(include=set(values)) == values
    user_file.write_text("")
    for name, value in values.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        monkeypatch.setenv(f"KP_{name.upper()}", text)
    assert Settings().model_dump(include=set(values)) == values


def test_the_key_is_read_and_never_shown(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_API_KEY", "kp_hunter2")
    read = Settings()
    assert read.api_key is not None
    assert read.api_key.get_secret_value() == "kp_hunter2"
    assert "hunter2" not in repr(read) + str(read.model_dump()) + read.model_dump_json()
    monkeypatch.delenv("KP_API_KEY")
    user_file.write_text("api_key = ['kp_hunter2']")
    assert "hunter2" not in refusal()


def test_paths_are_relative_to_the_file_that_says_them(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_file.parent / "etc" / "model").mkdir(parents=True)
    user_file = user_file.rename(user_file.parent / "etc" / "user.toml")
    monkeypatch.setenv("KP_CONFIG", str(user_file))
    user_file.write_text("database_url = 'runs.db'\nembedding_model = 'model'\n")
    assert Settings().database_url == str(user_file.parent / "runs.db")
    assert Settings().embedding_model == str(user_file.parent / "model")
    user_file.write_text("database_url = 'sqlite:///runs.db'\nembedding_model = 'owner/name'\n")
    assert Settings().database_url == f"sqlite:///{user_file.parent / 'runs.db'}"
    assert Settings().embedding_model == "owner/name"
    monkeypatch.setenv("KP_DATABASE_URL", "runs.db")
    assert Settings().database_url == "runs.db"


# Policies.


def test_policies_merge_key_by_key(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file.write_text(
        'agent_id = "a"\n[defaults]\nvisibility = "org"\nkeep = "all"\nthreshold = 0.5\n'
        '[domains.finance]\nthreshold = 0.7\nprivacy_level = "federated"\n'
    )
    monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.8")
    monkeypatch.setenv("KP_DEFAULTS__KEEP", "passed")
    current = Settings(
        agent_id=None,  # which is not given
        defaults=DomainPolicy(threshold=None),
        domains={
            "finance": DomainPolicy(visibility="network"),
            "x": {"weights": EVEN},
            "y": DomainPolicy(weights=ScoringWeights(**EVEN)),
        },
    )
    assert current.agent_id == "a"
    assert current.policy_for("finance") == DomainPolicy(
        threshold=0.8, visibility="network", privacy_level="federated", keep="passed"
    )
    assert current.policy_for("code") == DomainPolicy(visibility="org", threshold=0.5)
    assert current.policy_for("x") == current.policy_for("y")
    rate = DomainPolicy(pass_rate=0.2)
    for field in ("threshold", "worth_threshold"):  # either replaces a rate of a layer below
        over = DomainPolicy.model_validate({field: 0.5})
        assert over.merged_over(rate) == over
        assert rate.merged_over(over).pass_rate == 0.2


@pytest.mark.parametrize("variable", ["FINANCE", "finance", "CUSTOMER_SERVICE", "Legal"])
def test_variables_name_domains_in_lower_case(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    domain = variable.lower()
    (folder / "kp.toml").write_text(f'[domains.{domain}]\nkeep = "all"\n')
    monkeypatch.setenv(f"KP_DOMAINS__{variable}__THRESHOLD", "0.123")
    assert Settings().policy_for(domain) == DomainPolicy(threshold=0.123, keep="all")


def test_a_variable_may_hold_a_table_as_json_or_one_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_DOMAINS", '{"finance": {"threshold": 0.1, "keep": "all"}}')
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS", EVEN_JSON)
    monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.2")
    assert Settings().policy_for("finance") == DomainPolicy(
        threshold=0.2, keep="all", weights=ScoringWeights(**EVEN)
    )
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__NOVELTY", "0.5")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__COMPLEXITY", "0")
    assert Settings().policy_for("finance").weights == ScoringWeights(0, 0.5, 0.25, 0.25)


@pytest.mark.parametrize("visibility", ["org", "network"])
def test_runs_of_which_only_secrets_are_redacted_stay_local(
    user_file: Path, visibility: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, private = DomainPolicy(visibility=visibility), DomainPolicy(privacy_level="private")
    for policy in (sent, {"hr": sent}):
        monkeypatch.setenv("KP_DOMAINS__HR__PRIVACY_LEVEL", "private")
        with pytest.raises(ConfigError, match=r"'hr': .* sends"):
            KPCallbackHandler("finance", policy=policy, store=None)
    KPCallbackHandler("finance", policy={"finance": sent}, store=None).close()
    monkeypatch.delenv("KP_DOMAINS__HR__PRIVACY_LEVEL")
    assert "stays local" in refusal(defaults=private.merged_over(sent))
    monkeypatch.setenv("KP_DEFAULTS__VISIBILITY", visibility)
    user_file.write_text("[domains.finance]\nprivacy_level = 'private'\n")
    assert "'finance': privacy_level = 'private' leaves" in refusal()


# Faults.

FAULTS = {
    "max_steps = 0": "max_steps = 0: Input should be greater than 0",
    "max_steps = true": "max_steps = True: true and false are not numbers",
    "novelty_memory = 1000001": "novelty_memory = 1000001: Input should be less than",
    "run_timeout_s = 'day'": "run_timeout_s = 'day': Input should be a valid number",
    "run_timeout_s = inf": "run_timeout_s = inf: Input should be a finite number",
    "disabled = 'maybe'": "disabled = 'maybe': Input should be a valid boolean",
    "domains.x = 3": "domains.x = 3: Input should be a valid dictionary",
    "domains.x.threshold = 1.5": "domains.x.threshold = 1.5: Input should be less than",
    "domains.x.weights.novelti = 1.0": "novelti = 1.0: unknown key; did you mean novelty?",
    "domains.x.treshold = 1": "domains.x.treshold = 1: unknown key; did you mean threshold?",
    "defaults.zzz = 1": "defaults.zzz = 1: unknown key",
    "domains.x.weights = {complexity=0.5, novelty=1, tool_diversity=0, outcome_confidence=0}":
        "sum to 1.5; they must sum to 1",
    "prices.gpt-4.1 = { input = 1, output = 2 }": 'a model that has a dot: [prices."gpt-4.1"]',
    "prices.gpt-4o = { input = -1, output = 2 }": "prices.gpt-4o.input = -1: Input should",
    "redaction.names = ['!!']": "redaction.names.0 = '!!': '!!' contains no word",
    "redaction.patterns = { ticket = '(' }": "'(' is not a regular expression",
}  # fmt: skip


@pytest.mark.parametrize(("line", "message"), FAULTS.items())
def test_a_fault_in_a_file_is_told_with_what_to_write(
    user_file: Path, line: str, message: str
) -> None:
    user_file.write_text(line)
    assert re.search(f"^  {user_file}: .*{re.escape(message)}", refusal(), re.MULTILINE)


def test_the_layer_that_gave_the_value_is_blamed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kp.toml").write_text("[domains.code]\nthreshold = 2\nkeep = 'x'")
    monkeypatch.setenv("KP_DOMAINS__CODE__THRESHOLD", "3")
    monkeypatch.setenv("KP_MAX_QUEUE", "many")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__TRESHOLD", "0.5")
    wrong: Any = {"a": {"keep": 1}, 7: DomainPolicy()}
    message = refusal(max_steps=-1, tresh=1, domains=wrong)
    for line in (
        "argument max_steps: max_steps = -1: Input should be greater than 0",
        "argument tresh: tresh = 1: unknown key; did you mean threshold?",
        "argument domains: domains.a.keep = 1: Input should be 'passed' or 'all'",
        "argument domains: domains.7",
        "environment variable KP_MAX_QUEUE: max_queue = 'many': Input should be a valid integer",
        "environment variable KP_DOMAINS__CODE__THRESHOLD: domains.code.threshold = '3'",
        "environment variable KP_DOMAINS__FINANCE__TRESHOLD: domains.finance.treshold = 0.5: "
        "unknown key; did you mean threshold?",
        "kp.toml: domains.code.keep = 'x'",
    ):
        assert f"\n  {line}" in message
    assert message.count("\n") == 8
    monkeypatch.setenv("KP_DOMAINS", "{oops")
    assert re.search("an environment variable cannot be read.*domains", refusal(), re.DOTALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"max_steps = 1\nmax_queue = \n", r"kp.toml is not valid TOML: .*line 2"),
        (b"a = 1\nb = '\xff'\n", r"kp.toml is not UTF-8 text; save it as UTF-8"),
        (b"a = " + b"[" * 5000, r"kp.toml is not valid TOML: "),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_file_that_is_not_toml(folder: Path, content: bytes, message: str) -> None:
    (folder / "kp.toml").write_bytes(content)
    assert re.search(message, refusal())


def test_a_file_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "kp.toml").mkdir()
    assert re.match("kp.toml cannot be read: .*; make it a readable file, or remove", refusal())
    (folder / "kp.toml").rmdir()
    os.mkfifo(folder / "kp.toml")  # holds nobody up
    assert "kp.toml cannot be read: it is not a regular file" in refusal()
    gone = folder / "gone.toml"
    monkeypatch.setenv("KP_CONFIG", str(gone))
    assert refusal() == f"{gone} (named by KP_CONFIG) does not exist; create it or unset KP_CONFIG"
    monkeypatch.setenv("KP_CONFIG", "x" * 5000)
    assert "(named by KP_CONFIG) cannot be read" in refusal()
    monkeypatch.setenv("KP_CONFIG", "kp.toml")
    assert re.search(r"kp.toml \(named by KP_CONFIG\) .*: it is not a regular file", refusal())
    monkeypatch.setenv("KP_CONFIG", os.devnull)
    assert Settings().registry_url is None
    monkeypatch.delenv("KP_CONFIG")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    (folder / "here").rmdir()
    assert Settings() == Settings.current()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/db", "postgresql://me:s3c@ret@host/db",
        "postgresql://host/db?user=me&password=s3cret",
        "postgresql://me:s3/ret@host/db?sslpassword=s3cret",
    ],
)  # fmt: skip
def test_no_password_or_key_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[dict[str, Any]] = [
        {"database_url": [url]}, {"database_url": {"url": url}}, {"databaseurl": url},
        {"domains": {"x": url}},
    ]  # fmt: skip
    for arguments in wrong:
        message = refusal(**arguments)
        assert "s3" not in message
        assert "host" in message
    assert "s3" not in repr(Settings(database_url=url))
    monkeypatch.setenv("KP_DOMAINS__X__THRESHOLD", url)
    Path("kp.toml").write_text('[defaults]\napi_key = "s3k-1"\nAuthToken = "s3k-2"')
    message = refusal()
    assert "api_key = ***" in message
    assert "s3" not in message


def test_values_that_cannot_be_shown_or_are_long() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "max_steps = <Rude>: Input" in refusal(max_steps=Rude())
    assert len(refusal(max_steps="9" * 10**6)) < 400
    endless: dict[str, Any] = {}
    endless["x"] = endless
    assert "domains" in refusal(domains=endless)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_file_gives_settings_or_a_config_error(folder: Path, content: bytes) -> None:
    (folder / "kp.toml").write_bytes(content)
    with suppress(ConfigError):
        Settings()


# Names that are not known are told once, with the known one that was probably meant.

MEANT = {
    "Finance": "finance", "FINANCE ": "finance", "fianance": "finance", "finnance": "finance",
    "Finnace": "finance", "customer-service": "customer_service",
    "Customer Services": "customer_service", "medial": "medical", "defaults": "default",
    **dict.fromkeys(("finance", "legal", "finance_eu", "eu-finance", "code2", "decode", "support",
                     "", "___", "金融", "\ud800", "finance" * 1000)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "meant"), MEANT.items(), ids=lambda value: ascii(value)[:30])
def test_the_name_that_was_meant(name: str, meant: str | None) -> None:
    assert near_name(name, PROFILES) == meant


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """A function that returns what was warned of."""
    caplog.set_level(logging.WARNING, logger="kp_langchain")
    return lambda: [
        one.getMessage() for one in caplog.records if one.name.startswith("kp_langchain")
    ]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("KP_DATABSE_URL", "KP_DATABASE_URL"), ("kp_databse_url", "KP_DATABASE_URL"),
        ("KP_EMBEDING_MODEL", "KP_EMBEDDING_MODEL"), ("KP_DISABLE", "KP_DISABLED"),
        ("KP_CONFG", "KP_CONFIG"),
        ("KP_DEFAULT__KEEP", "KP_DEFAULTS__KEEP"),
        ("KP_DOMAINS_FINANCE_THRESHOLD", "KP_DOMAINS__FINANCE__THRESHOLD"),
        ("KP_REDACTION_NAMES", "KP_REDACTION__NAMES"),
    ],
)  # fmt: skip
def test_a_misspelt_variable_is_told_once_and_never_its_value(
    monkeypatch: pytest.MonkeyPatch, warnings: Any, variable: str, meant: str
) -> None:
    before = Settings()
    monkeypatch.setenv(variable, "never to be shown")
    for _ in range(3):
        assert Settings() == Settings.current() == before
        KPCallbackHandler(store=None).close()
    assert warnings() == [f"{variable} is not a setting and has no effect; did you mean {meant}?"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KP_TELEMETRY", "1"), ("KP_CLUSTER_HOST", "1"), ("KP_", "x"), ("KP___X", "x"),
        ("KP_DATABSE_URL", ""), ("KP_MAX_STEPS", "5"), ("kp_max_steps", "5"),
        ("KP_DOMAINS", '{"legal": {"keep": "all"}}'), ("KP_DOMAINS__FINANCE__THRESHOLD", "0.5"),
        ("KP_DEFAULTS__KEEP", "all"), ("KP_REDACTION__NAMES", '["employee number"]'),
    ],
)  # fmt: skip
def test_variables_of_others_and_those_in_force_are_not_told(
    monkeypatch: pytest.MonkeyPatch, warnings: Any, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    Settings()
    assert warnings() == []


def test_a_misspelt_domain_of_a_handler_or_a_run_is_told_once(warnings: Any) -> None:
    for _ in range(3):
        watching = handler("fianance")
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(120)
    (line,) = warnings()
    assert line.startswith("domain 'fianance' has no weights, threshold or policy of its own")
    assert "did you mean 'finance'?" in line
    metadata = {"kp_domain": "customer-service"}
    for _ in range(2):
        searching().invoke(ASK, {"callbacks": [watching], "metadata": metadata})
    assert watching.flush(120)
    (line,) = warnings()[1:]
    assert "did you mean 'customer_service'?" in line
    Path("kp.toml").write_text("[domains.legal]\nkeep = 'all'\n")
    handler("legal")
    handler("insurance")  # which is like no known name
    assert len(warnings()) == 2
