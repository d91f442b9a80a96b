"""What is learned is written into kp.toml, and whatever else stands there stays."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ConfigError, ScoringWeights, Settings
from kp_langchain.cli.policy_file import with_policy, write_policy

pytest.importorskip("tomlkit")

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ScoringWeights(0.1, 0.4, 0.2, 0.3)
VALUES = {"threshold": 0.625, "weights": asdict(WEIGHTS)}
EVEN = "complexity = 0.25, novelty = 0.25, tool_diversity = 0.25, outcome_confidence = 0.25"
LINES = EVEN.split(", ")


def key_of(domain: str) -> str:
    """A domain as a key of TOML, as a person would write it."""
    bare = domain.isascii() and domain.replace("_", "").replace("-", "").isalnum()
    return domain if bare else f"'{domain}'"


@st.composite
def documents(draw: st.DrawFn, domain: str, others: list[str]) -> str:
    """Configuration files that load, laid out in all the ways that TOML has, with comments."""
    number = 0

    def comment() -> str:
        nonlocal number
        number += 1
        return draw(
            st.sampled_from(["", f"  # c{number}", f" #c{number} [domains.{key_of(domain)}]"])
        )

    def alone() -> list[str]:
        nonlocal number
        number += 1
        lines = draw(st.lists(st.sampled_from(["", f"# n{number}", f"  # threshold = {number}"])))
        return lines[:3]

    def entries(prefix: str, given: list[str]) -> list[str]:
        return [line for one in given for line in [*alone(), f"{prefix}{one}{comment()}"]]

    def policy(name: str) -> list[str]:
        """Keys of a policy, each a line."""
        given = draw(
            st.lists(st.sampled_from(["threshold", "keep", "weights", "spread"]), unique=True)
        )
        if "weights" in given and "spread" in given:
            given.remove("spread")
        lines = {
            "threshold": ["threshold = 0.5"],
            "keep": ['keep = "all"'],
            "weights": [f"weights = {{ {EVEN} }}"],
            "spread": [f"weights.{line}" for line in LINES],
        }
        return [line for key in given for line in lines[key]]

    names = draw(st.permutations([domain, *others]))[: draw(st.integers(0, len(others) + 1))]
    top = entries(
        "", draw(st.lists(st.sampled_from(["max_steps = 7", "max_queue=8"]), unique=True))
    )
    blocks = []
    if draw(st.booleans()):
        blocks.append([f"[defaults]{comment()}", *entries("", ['keep = "all"', "threshold = 0.1"])])
    if draw(st.booleans()):
        text = f'names = ["""\n[domains.{key_of(domain)}] # in a text\nthreshold = 1"""]'
        blocks.append([f"[ redaction ]{comment()}", f"{text}{comment()}"])
    style = draw(st.sampled_from(["headers", "dotted", "one_table", "inline"]))
    if style == "inline" and names:
        inside = ", ".join(f"{key_of(n)} = {{ threshold = 0.5 }}" for n in names)
        top += entries("", [f"domains = {{ {inside} }}"])
    elif style == "dotted":
        for name in names:
            top += entries(f"domains.{key_of(name)}.", policy(name))
    elif style == "one_table" and names:
        block = [f"[domains]{comment()}"]
        for name in names:
            if draw(st.booleans()):
                block += entries("", [f"{key_of(name)} = {{ threshold = 0.5 }}"])
            else:
                block += entries(f"{key_of(name)}.", policy(name))
        blocks.append(block)
    elif style == "headers":
        for name in names:
            header, given = f"[domains.{key_of(name)}]{comment()}", policy(name)
            with_header = draw(st.booleans())
            if with_header:
                blocks.append([header, *entries("", given)])
            if not (with_header and any("weights" in line for line in given)):
                sub = f"[domains.{key_of(name)}.weights]{comment()}"
                if draw(st.booleans()):
                    blocks.append([sub, *entries("  ", LINES)])
    lines = [*alone(), *top]
    for block in draw(st.permutations(blocks)):
        lines += [*alone(), *block]
    text = "\n".join([*lines, *alone()]) + draw(st.sampled_from(["", "\n", "\n\n"]))
    return draw(st.sampled_from(["", "\ufeff"])) + text.replace(
        "\n", draw(st.sampled_from(["\n", "\r\n"]))
    )


def paths(table: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all values, in order."""
    found = []
    for key, value in table.items():
        found += paths(value, (*above, key)) if isinstance(value, dict) else [(*above, key)]
    return found


def parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text.removeprefix("\ufeff"))


def is_written(path: tuple[str, ...], domain: str, values: dict[str, Any]) -> bool:
    return path[:2] == ("domains", domain) and path[2:3] and path[2] in values


@given(data=st.data())
def test_everything_but_what_is_written_stays(data):
    domain = data.draw(st.sampled_from(["finance", "two words", "a.b", "金融", "x-1"]))
    text = data.draw(documents(domain, ["code", "b.c"]))
    keys = data.draw(st.sampled_from([["threshold"], ["weights"], ["threshold", "weights"]]))
    values = {key: VALUES[key] for key in keys}
    Settings.supposing(text.removeprefix("\ufeff"))  # or the test is about nothing

    new = with_policy(text, domain, values)

    expected = parsed(text)
    expected.setdefault("domains", {}).setdefault(domain, {}).update(values)
    assert parsed(new) == expected
    before, after = paths(parsed(text)), paths(parsed(new))
    assert [path for path in after if path in before] == before
    others = [path for path in after if path not in before]
    assert all(is_written(path, domain, values) for path in others)
    # Every line is still there, in order; of those that may hold what is written, the comment.
    assert new.startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in new) == ("\r\n" in text) or "\n" not in text
    changed = (*keys, *VALUES["weights"])
    rest = iter(new.removeprefix("\ufeff").splitlines())
    for line in text.removeprefix("\ufeff").splitlines():
        content, mark, comment = line.partition("#")
        if "{" in content or any(name in content for name in changed):
            assert any(mark + comment in other for other in rest), line
        else:
            assert line in rest, line
    assert with_policy(new, domain, values) == new
    policy = Settings.supposing(new.removeprefix("\ufeff")).policy_for(domain)
    assert policy.threshold == values.get("threshold", policy.threshold)
    assert policy.weights == (WEIGHTS if "weights" in values else policy.weights)


@given(domain=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_domain_can_be_named(domain):
    new = with_policy("max_steps = 7 # seven\n", domain, VALUES)
    assert new.startswith("max_steps = 7 # seven\n")
    assert Settings.supposing(new).policy_for(domain).threshold == 0.625
    assert with_policy(new, domain, VALUES) == new


def test_a_file_as_people_write_it():
    text = (
        "max_steps = 7\n\n[domains.finance]  # ours\nthreshold = 0.5  # for now\nkeep = 'all'\n\n"
        "# what else to hide\n[redaction]\nnames = ['employee number']\n"
    )
    assert with_policy(text, "finance", VALUES) == (
        "max_steps = 7\n\n[domains.finance]  # ours\nthreshold = 0.625  # for now\nkeep = 'all'\n"
        "weights = {complexity = 0.1, novelty = 0.4, tool_diversity = 0.2, "
        "outcome_confidence = 0.3}\n\n"
        "# what else to hide\n[redaction]\nnames = ['employee number']\n"
    )
    assert with_policy(text, "code", {"threshold": 0.625}) == (
        text + "\n[domains.code]\nthreshold = 0.625\n"
    )


def test_a_file_is_made_where_there_is_none(folder, monkeypatch):
    written = write_policy("finance", threshold=0.625)
    assert (written.path, written.is_new_file, written.overridden_by) == (Path("kp.toml"), True, {})
    assert (folder / "kp.toml").read_text() == "[domains.finance]\nthreshold = 0.625\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((folder / "kp.toml").stat().st_mode) == 0o666 & ~mask
    monkeypatch.setenv("KP_CONFIG", str(folder / "other.toml"))
    assert write_policy("finance", weights=WEIGHTS).is_new_file
    assert Settings().policy_for("finance").weights == WEIGHTS
    assert Settings().policy_for("finance").threshold is None
    assert sorted(path.name for path in folder.iterdir()) == ["kp.toml", "other.toml"]


def test_mode_and_link_stay(folder):
    real = folder / "etc"
    real.mkdir()
    (real / "real.toml").write_text("api_key = 'kp_x' # mine\n")
    (real / "real.toml").chmod(0o640)
    (folder / "kp.toml").symlink_to("etc/real.toml")
    assert not write_policy("finance", threshold=0.625).is_new_file
    assert (folder / "kp.toml").is_symlink()
    assert (real / "real.toml").read_text().startswith("api_key = 'kp_x' # mine\n")
    assert stat.S_IMODE((real / "real.toml").stat().st_mode) == 0o640
    assert [path.name for path in real.iterdir()] == ["real.toml"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"max_steps = 0\n", r"kp\.toml: max_steps = 0: expected a whole number above 0"),
        (b"max_steps = \n", "is not valid TOML"),
        (b"\xff = 1\n", "is not UTF-8 text at line 1"),
        (b"[domains.finance]\ntreshold = 0.5\n", "did you mean threshold"),
        (b"domains = 3\n", "domains = 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_as_it_was(folder, content, complaint):
    (folder / "kp.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        write_policy("finance", threshold=0.625)
    assert (folder / "kp.toml").read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a device, or replace one")
def test_a_device_stays_a_device(folder):
    os.mknod(folder / "kp.toml", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # what /dev/null is
    with pytest.raises(ConfigError, match=r"kp\.toml is not a file that can be written"):
        write_policy("finance", threshold=0.625)
    assert stat.S_ISCHR((folder / "kp.toml").stat().st_mode)


def test_a_change_that_would_not_load_is_not_made(folder, monkeypatch):
    (folder / "kp.toml").write_text("[domains.finance]\nkeep = 'all'\n")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__NOVELTY", "0.9")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__COMPLEXITY", "0.1")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__TOOL_DIVERSITY", "0")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__WEIGHTS__OUTCOME_CONFIDENCE", "0")
    with pytest.raises(ConfigError, match=r"kp\.toml is unchanged, because with the change"):
        write_policy("finance", threshold=1.5)
    with pytest.raises(ConfigError, match="is unchanged"):
        write_policy("", threshold=0.5)
    assert (folder / "kp.toml").read_text() == "[domains.finance]\nkeep = 'all'\n"


def test_variables_that_come_first_are_named(monkeypatch):
    monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.3")
    monkeypatch.setenv("kp_domains__finance__weights__novelty", "0.4")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__KEEP", "all")
    monkeypatch.setenv("KP_DOMAINS__FINANCE__VISIBILITY", "")
    written = write_policy("finance", threshold=0.625, weights=WEIGHTS)
    assert written.overridden_by == {"threshold": ("KP_DOMAINS__FINANCE__THRESHOLD",)}
    assert write_policy("finance", threshold=0.3).overridden_by == {}
    assert write_policy("code", threshold=0.2).overridden_by == {}
    monkeypatch.setenv("KP_DOMAINS", '{"code": {"threshold": 0.9}}')
    assert write_policy("code", threshold=0.2).overridden_by == {"threshold": ("KP_DOMAINS",)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_read_only_file_stays_as_it_was(folder):
    (folder / "kp.toml").write_text("max_steps = 7\n")
    (folder / "kp.toml").chmod(0o400)
    with pytest.raises(ConfigError, match="because it cannot be written: it is read-only"):
        write_policy("finance", threshold=0.625)
    assert (folder / "kp.toml").read_text() == "max_steps = 7\n"


def test_a_disk_without_room_leaves_the_old_file(folder):
    (folder / "kp.toml").write_text("max_steps = 7 # seven\n")
    code = (
        "from kp_langchain.cli.policy_file import write_policy\n"
        "try: write_policy('finance', threshold=0.625)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
        check=False,
    )
    assert "kp.toml is unchanged, because it cannot be written" in done.stdout, done.stderr
    assert (folder / "kp.toml").read_text() == "max_steps = 7 # seven\n"
    assert [path.name for path in folder.iterdir()] == ["kp.toml"]
