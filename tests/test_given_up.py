"""Trust in a working folder's kp.toml, which the design gives up: this file goes with it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, Settings, config_trust
from kp_langchain.cli.policy_file import write_policy
from kp_langchain.errors import ConfigError
from tests.commands import cli, write_trusted

A, B = "database_url = 'a.db'\n", "database_url = 'b.db'\n"


@pytest.fixture
def own(folder: Path) -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    path.parent.mkdir(parents=True)
    return path


def test_trust_is_bound_to_path_and_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def database_url() -> str | None:
        return Settings.current().database_url

    write_trusted(A)
    assert database_url() == str(folder / "a.db")
    (folder / "kp.toml").write_text(B)
    assert database_url() is None
    assert "changed since it was trusted" in caplog.text
    assert f"kp-langchain trust {folder}/kp.toml" in caplog.text
    (folder / "kp.toml").write_text(A)
    assert database_url() == str(folder / "a.db")
    (folder / "other").mkdir()
    monkeypatch.chdir("other")
    Path("kp.toml").write_text(A)
    assert database_url() is None


def test_a_link_is_trusted_by_what_it_leads_to(folder: Path) -> None:
    (folder / "real.toml").write_text(A)
    (folder / "kp.toml").symlink_to("real.toml")
    assert cli("trust").returncode == 0
    assert Settings().database_url == str(folder / "a.db")
    (folder / "real.toml").write_text(B)
    assert Settings().database_url is None


def test_the_command_trusts_lists_and_removes(folder: Path) -> None:
    path = folder / "kp.toml"
    path.write_text(A)
    done = cli("trust")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "database_url")
    assert f"{path} is trusted with its current content." in done.stdout
    assert cli("trust", "--list").stdout == f"{path}\n"
    path.write_text(B)
    assert cli("trust", "--list").stdout == f"{path}  (changed since)\n"
    assert cli("trust", str(folder)).returncode == 0
    assert cli("trust", "--remove").returncode == 0
    assert cli("trust", "--list").stdout == ""
    done = cli("trust", "--remove")
    assert (done.returncode, "is not trusted" in done.stderr) == (1, True)
    assert cli("trust", "nothing-here").returncode == 1
    assert cli("trust", "--list", "--remove").returncode == 2


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_what_is_trusted_is_nobody_elses_to_write(folder: Path) -> None:
    write_trusted(A)
    (entry,) = config_trust.trust_folder().iterdir()
    for path, right, wrong in ((entry, 0o600, 0o666), (entry.parent, 0o700, 0o777)):
        assert stat.S_IMODE(path.stat().st_mode) == right
        path.chmod(wrong)
        assert Settings().database_url is None
        path.chmod(right)
        assert Settings().database_url is not None


def test_calibrate_keeps_a_trusted_file_trusted(folder: Path) -> None:
    write_trusted(A)
    assert not write_policy("finance", threshold=0.625).is_ignored
    assert Settings().database_url == str(folder / "a.db")
    assert Settings().policy_for("finance").threshold == 0.625


def test_where_runs_may_be_sent_an_untrusted_policy_does_not_count(
    folder: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.write_text("[domains.finance]\nvisibility = 'network'\nthreshold = 0.75\n")
    (folder / "kp.toml").write_text("[defaults]\nthreshold = 0\nkeep = 'all'\n")
    found = Settings()
    assert found.policy_for("finance") == DomainPolicy(visibility="network", threshold=0.75)
    assert found.policy_for("other") == DomainPolicy(threshold=0, keep="all")
    assert "runs of domain finance may be sent" in caplog.text
    assert found.policy_for("other", DomainPolicy(visibility="org")).threshold is None
    assert write_policy("finance", threshold=0.625).is_ignored


def test_what_cannot_be_used_without_an_untrusted_policy_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = "complexity=0.25, novelty=0.25, tool_diversity=0.25, outcome_confidence=0.25"
    (folder / "kp.toml").write_text(f"[domains.code]\nweights = {{{weights}}}\n")
    monkeypatch.setenv("KP_DOMAINS__CODE__WEIGHTS__NOVELTY", "0.25")
    assert Settings().policy_for("code").weights is not None
    monkeypatch.setenv("KP_DOMAINS__CODE__VISIBILITY", "network")
    with pytest.raises(ConfigError, match="without the settings of a file that is not trusted"):
        Settings()
