"""A folder that somebody else prepared: what its kp.toml may say, and what it may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer, Settings, TraceStore
from kp_langchain.cli.policy_file import write_policy
from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.registry.credentials import configured_registry
from tests.agents import searching

HOSTILE = """\
registry_url = "https://evil.example.org"
database_url = "postgresql://evil.example.org/db"
api_key = "kp_evil"
agent_id = "kp:agent:evil"
embedding_model = "model"
send_scores_to = ["langsmith"]
disabled = true
max_queue = 1

[redaction]
allow = ["(?s).+"]
names = ["employee number"]
pseudonym_key = "known to whoever wrote this"
redactor = "evil:redactor"

[defaults]
visibility = "network"
privacy_level = "private"
threshold = 0
keep_days = 3

[domains.finance]
visibility = "org"
privacy_level = "federated"
threshold = 0.25
"""
IGNORED = (
    "registry_url, database_url, api_key, agent_id, embedding_model, send_scores_to, disabled, "
    "max_queue, defaults.visibility, defaults.privacy_level, redaction.allow, "
    "redaction.pseudonym_key, redaction.redactor, domains.finance.visibility, "
    "domains.finance.privacy_level"
)
KEY = "kp_0123456789abcdef"


@pytest.fixture
def own(folder: Path) -> Path:
    """The user's own configuration file, which is not there yet."""
    path = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    path.parent.mkdir(parents=True)
    return path


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelname == "WARNING" and one.name.startswith("kp_langchain")
    ]


def test_nothing_that_sends_redirects_unredacts_or_loads_code_counts(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Settings().model_dump()
    (folder / "kp.toml").write_text(HOSTILE)
    current = Settings()
    # Three harmless keys count, and nothing else.
    assert current.policy_for("any") == DomainPolicy(threshold=0, keep_days=3)
    assert current.policy_for("finance") == DomainPolicy(threshold=0.25, keep_days=3)
    assert current.redaction.names == ["employee number"]
    rest = current.model_dump() | {"defaults": before["defaults"], "domains": {}}
    rest["redaction"]["names"] = []
    assert rest == before
    Settings.current()
    (warning,) = warnings(caplog)
    own = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    assert warning == (
        f"{folder}/kp.toml is in the working folder, so these settings in it are ignored: "
        f"{IGNORED}; if you want them, put them into {own}, "
        f"or name the file: KP_CONFIG={folder}/kp.toml"
    )


def test_of_a_policy_all_counts_but_who_may_see_a_run_and_what_is_redacted(folder: Path) -> None:
    lines = {
        "threshold": "0.5", "gate": "'worth'", "worth_threshold": "0.5", "pass_rate": "0.5",
        "twin_similarity": "0.5", "keep": "'all'", "keep_days": "1", "visibility": "'private'",
        "privacy_level": "'federated'",
        "weights": "{complexity = 1, novelty = 0, tool_diversity = 0, outcome_confidence = 0}",
    }  # fmt: skip
    assert lines.keys() == DomainPolicy.model_fields.keys()
    table = "\n".join(f"{key} = {value}" for key, value in lines.items())
    (folder / "kp.toml").write_text(f"[defaults]\n{table}\n[domains.code]\n{table}\n")
    for policy in (Settings().defaults, Settings().domains["code"]):
        assert policy.model_fields_set == lines.keys() - {"visibility", "privacy_level"}


def test_no_run_and_no_key_goes_where_a_folder_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kp.toml").write_text(HOSTILE)
    monkeypatch.setenv("KP_API_KEY", KEY)
    assert configured_registry(Settings()) is None
    with TraceStore("runs.db") as store:
        watching = KPCallbackHandler("finance", store=store, scorer=Scorer(embedder=None))
        asked = {"messages": [("user", "what is the answer, bob@example.com?")]}
        searching().invoke(asked, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        assert store.outbox.contributions() == []
    assert "bob@" not in scored.trace.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        'REGISTRY_URL = "https://evil.example.org"', 'Database_url = "x.db"',
        'API_KEY = "kp_evil"', 'embedding_Model = "model"', 'Agent_Id = "kp:agent:evil"',
        'DEFAULTS = { visibility = "network" }',
        'Domains = { finance = { visibility = "network" } }',
        'REDACTION = { allow = ["(?s).+"] }',
        'Defaults = { visibility = "network" }\ndefaults = { threshold = 0 }',
    ],
)  # fmt: skip
def test_no_other_spelling_of_a_key_counts(folder: Path, text: str) -> None:
    (folder / "kp.toml").write_text(text)
    with pytest.raises(ConfigError, match="unknown key; did you mean"):
        Settings()


def test_a_folder_adds_to_what_the_user_redacts_and_takes_nothing_away(
    folder: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text('[redaction]\nnames = ["staff id"]\npatterns = { ticket = "TICK-[0-9]{6}" }\n')
    (folder / "kp.toml").write_text(
        '[redaction]\nnames = ["the staff"]\npatterns = { ticket = "x{9}", room = "R[0-9]{3}" }\n'
    )
    rules = Settings().redaction
    assert rules.names == ["staff id", "the staff"]
    assert rules.patterns == {"ticket": "TICK-[0-9]{6}", "room": "R[0-9]{3}"}
    assert "QX7" not in redact("the staff id: QX7-55", rules=rules).value
    monkeypatch.setenv("KP_CONFIG", "kp.toml")  # from here on it is the user's word
    assert Settings().redaction.names == ["the staff"]
    assert Settings().redaction.patterns["ticket"] == "x{9}"


@pytest.mark.parametrize("is_by_the_user", [True, False])
@pytest.mark.parametrize("mistake", ['names = ["!!"]', 'patterns = { ticket = "(" }'])
def test_a_mistake_in_redaction_is_told_to_be_where_it_stands(
    folder: Path, own: Path, mistake: str, is_by_the_user: bool
) -> None:
    right = '[redaction]\nnames = ["desk"]\npatterns = { room = "R1", ticket = "T1" }\n'
    wrong = f"[redaction]\n{mistake}\n"
    own.write_text(wrong if is_by_the_user else right)
    (folder / "kp.toml").write_text(right if is_by_the_user else wrong)
    with pytest.raises(ConfigError) as refusal:
        Settings()
    where = str(own) if is_by_the_user else "  kp.toml"
    assert f"{where}: redaction.{mistake.split()[0]}" in str(refusal.value).splitlines()[-1]


@pytest.mark.parametrize("how", ["named", "own", "environment", "argument"])
def test_it_counts_from_whoever_is_the_user(
    folder: Path,
    own: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "https://registry.example.org"
    arguments: dict[str, Any] = {}
    text = f'registry_url = "{url}"\n[defaults]\nvisibility = "network"\n'
    if how == "named":
        (folder / "other.toml").write_text(text)
        monkeypatch.setenv("KP_CONFIG", "other.toml")
    elif how == "own":
        own.write_text(text)
    elif how == "environment":
        monkeypatch.setenv("KP_REGISTRY_URL", url)
        monkeypatch.setenv("KP_DEFAULTS__VISIBILITY", "network")
    else:
        arguments = {"registry_url": url, "defaults": DomainPolicy(visibility="network")}
    current = Settings(**arguments)
    assert (current.registry_url, current.policy_for("x").visibility) == (url, "network")
    assert warnings(caplog) == []


def test_a_folder_does_not_decide_which_runs_are_sent(
    folder: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.write_text("[domains.finance]\nvisibility = 'network'\nthreshold = 0.75\n")
    (folder / "kp.toml").write_text("[defaults]\nthreshold = 0\nkeep = 'all'\n")
    current = Settings()
    assert current.policy_for("finance") == DomainPolicy(visibility="network", threshold=0.75)
    assert current.policy_for("other") == DomainPolicy(threshold=0, keep="all")
    assert "runs of domain finance may be sent" in caplog.text
    assert current.policy_for("other", DomainPolicy(visibility="org")).threshold is None


def test_a_policy_is_written_where_it_counts(folder: Path, own: Path) -> None:
    shared = "[domains.finance]\nvisibility = 'network'\n"
    own.write_text(shared)
    assert write_policy("code", threshold=0.625).path == "kp.toml"
    written = write_policy("finance", threshold=0.75)
    assert (written.path, written.overridden) == (str(own), ())
    assert own.read_text() == "[domains.finance]\nthreshold = 0.75\nvisibility = 'network'\n"
    assert (folder / "kp.toml").read_text() == "[domains.code]\nthreshold = 0.625\n"
    assert Settings().policy_for("code").threshold == 0.625
    assert Settings().policy_for("finance").threshold == 0.75


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_of_an_own_file_that_others_may_write_only_what_is_harmless_counts(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.write_text(
        "registry_url = 'https://registry.example.org'\n[domains.finance]\nthreshold = 0.3\n"
    )
    own.chmod(0o666)
    assert (Settings().registry_url, Settings().policy_for("finance").threshold) == (None, 0.3)
    assert f"chmod go-w {own}" in caplog.text
    own.chmod(0o644)
    assert Settings().registry_url == "https://registry.example.org"


def test_without_a_home_nothing_here_is_the_users_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "here")  # relative, so it would be the folder's
    (folder / "here" / "kp_langchain").mkdir(parents=True)
    for path in (folder / "here" / "kp_langchain" / "kp.toml", folder / "kp.toml"):
        path.write_text("registry_url = 'https://e.org'")
    assert Settings().registry_url is None


def test_what_it_says_is_shown_in_one_printable_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "kp.toml").write_text(
        '[domains."a\\n\\u001b[31mERROR kp: \\u202eb"]\nvisibility = "org"\n'
    )
    Settings()
    (warning,) = warnings(caplog)
    assert warning.isprintable()
    (folder / "kp.toml").write_text('"a\\n\\u001b[31mb\\u202e" = 1\n')
    with pytest.raises(ConfigError) as caught:
        Settings()
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_a_key_goes_to_the_registry_alone_that_came_with_it(
    own: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = "https://here.example.org", "https://there.example.org"

    def key_for(url: str | None = None) -> Any:
        registry = configured_registry(Settings(), url)
        assert registry is not None
        return registry.key_id

    own.write_text(f'registry_url = "{here}"\napi_key = "{KEY}"\n')
    with_key, anonymous = key_for(), key_for(there)
    assert key_for(f"{here}/") == with_key != anonymous
    monkeypatch.setenv("KP_REGISTRY_URL", there)
    assert key_for() == anonymous
    assert f"belongs to {here} and is not sent to {there}" in caplog.text
    # One that came without goes to the registry of the settings.
    monkeypatch.setenv("KP_API_KEY", KEY)
    assert (key_for(), key_for(here)) == (with_key, anonymous)
