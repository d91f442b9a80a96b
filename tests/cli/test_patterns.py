"""`patterns`: the list, one SKILL.md, and a folder of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import ScoredTrace, ToolCallPattern, TraceStore, Verdict
from kp_langchain.run_keys import RunKeys
from tests.cli.made_runs import HOSTILE, made
from tests.commands import cli

DATABASE = ("--database", "runs.db")


def run(number: int, tool: str = "refund", *, success: bool = True, **wire: Any) -> ScoredTrace:
    """A run of a task of its own that looks something up, and calls a tool for it."""
    steps: list[dict[str, Any]] = []
    for name, inputs, output in (
        ("find", {"name": f"N{number}"}, f"id C{number}"),
        (tool, {"customer": f"C{number}", "currency": "EUR"}, "paid"),
    ):
        at = {"tool": {"name": name}}
        steps += [{"type": "tool_call", "input": inputs} | at]
        steps += [{"type": "observation", "content": output} | at]
    options = {"verdict": Verdict(success=success), **wire.pop("options", {})}
    task = f"Pay N{number} back"
    return made(number, steps=steps, objective=task, options=options, success=success, **wire)


def fill(**wire: Any) -> None:
    with TraceStore("runs.db") as store:
        store.add(*[run(at, success=at > 0, **wire) for at in range(5)])
        store.add(*[run(at, f"other_{at}", **wire) for at in range(10, 18)])


def printed(*words: str, columns: int = 160) -> str:
    done = cli("patterns", *words, *DATABASE, columns=columns)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_patterns_are_listed_shown_and_exported() -> None:
    fill()
    listed = printed()
    assert "finance" in listed
    assert " ".join(listed.split()).endswith(
        "find > refund 1 pattern in 13 runs. One of them: kp-langchain patterns ID"
    )
    row = next(line.split() for line in listed.splitlines() if "find > refund" in line)
    assert row[1:6] == ["finance", "5", "80%", "4", "4"]
    unit = ToolCallPattern.model_validate_json(printed("--json"))
    assert unit.performance.uses == 5
    skill = printed(row[0])
    assert skill == printed("show", unit.name)
    assert '2. `refund(customer="{customer}", currency="EUR")`' in skill
    shown = json.loads(printed("show", unit.id, "--json"))
    assert shown["pattern"]["id"] == unit.id
    assert len(shown["members"]) == 4
    done = cli("patterns", "export", "skills", *DATABASE)
    assert (done.returncode, done.stderr) == (0, "Exported 1 pattern to skills.\n")
    assert (
        Path("skills", unit.name, "SKILL.md").read_text().rstrip()
        == skill.partition("\n\ndigest: ")[0]
    )
    (line,) = Path("skills", "patterns.jsonl").read_text().splitlines()
    assert ToolCallPattern.model_validate_json(line) == unit
    assert "0 patterns in 0 runs of finanse. Did you mean --domain finance?" in printed(
        "--domain", "finanse"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nosuch"), "no pattern 'nosuch'; list them: kp-langchain patterns"),
        (("export", "skills", "--domain", "code"), "nothing to export."),
        (("export", "full"), "full exists and is not empty"),
    ],
)
def test_a_mistake_says_what_to_do(words: tuple[str, ...], message: str) -> None:
    fill()
    Path("full").mkdir()
    Path("full", "a").touch()
    done = cli("patterns", *words, *DATABASE)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in " ".join(done.stderr.split())


def test_what_keeps_identifiers_is_exported_only_if_that_is_asked_for() -> None:
    fill(privacy_level="private")
    done = cli("patterns", "export", "skills", *DATABASE)
    assert "nothing to export. Left out: 1 with identifiers" in done.stderr
    assert not Path("skills").exists()
    done = cli("patterns", "export", "skills", "--with-identifiers", *DATABASE)
    assert done.stderr == "Exported 1 pattern to skills.\n"


def test_patterns_of_a_tenant_and_rejected_ones_are_not_exported() -> None:
    with TraceStore("runs.db") as store:
        options: dict[str, Any] = {"keys": RunKeys(namespace="tenant a")}
        store.add(*[run(at, options=options) for at in range(1, 5)])
    done = cli("patterns", "export", "skills", *DATABASE)
    assert "nothing to export. Left out: 1 of a namespace (--all-namespaces)." in done.stderr
    done = cli("patterns", "export", "skills", "--all-namespaces", *DATABASE)
    assert done.stderr == "Exported 1 pattern to skills.\n"
    name = next(Path("skills").glob("*/SKILL.md")).parent.name
    printed("reject", name)
    done = cli("patterns", "export", "again", "--all-namespaces", *DATABASE)
    assert "nothing to export. Left out: 1 rejected." in done.stderr


def test_a_person_admits_and_rejects() -> None:
    fill()
    unit = ToolCallPattern.model_validate_json(printed("--json"))
    assert printed("admit", unit.id[:16]) == (
        f"Admitted 1 pattern; runs may be shown it.\n  {unit.id}  {unit.name}\n"
    )
    assert " admitted " in printed()
    assert printed("reject", unit.name).startswith("Rejected 1 pattern; no run is shown it.")
    assert " rejected " in printed()
    assert printed("admit", unit.id).startswith("Admitted 1 pattern")
    with TraceStore("runs.db") as store:
        (decided,) = store.own_patterns.decided().values()
        assert decided.state == "admitted"
        assert str(decided.decided_by).startswith("person")
        store.delete(decided.members[0])
    assert " admit again " in printed()
    assert printed("admit", unit.id).startswith("Admitted 1 pattern")
    with TraceStore("runs.db") as store:
        for id_ in store.own_patterns.decided()[unit.id].members:
            store.report_outcome(id_, success=False)
    gone = f"admitted, and not among the runs any more: {unit.id}"
    assert gone in printed()
    shown = printed("show", unit.id[:16].upper())
    assert "<<<example 1: a procedure of 4 runs" in shown
    assert shown.endswith("It is not among the runs any more.\n")
    done = cli("patterns", "admit", unit.name, *DATABASE)
    assert "not among the runs any more, so nothing is admitted" in " ".join(done.stderr.split())
    assert printed("reject", unit.id[:16]).startswith("Rejected 1 pattern")
    assert f"rejected, and not among the runs any more: {unit.id}" in printed()


def test_what_was_read_is_what_is_admitted_and_what_is_shown_is_what_was_admitted() -> None:
    fill()
    id_ = json.loads(printed("--json"))["id"]
    read = printed("show", id_).rpartition("digest: ")[2].strip()
    assert printed("admit", id_, "--digest", read).startswith("Admitted 1 pattern")
    before = printed("show", id_)
    assert '2. refund({"customer": "C1", "currency": "EUR"})' in before
    assert before.endswith(f"digest: {read}\n")
    with TraceStore("runs.db") as store:
        store.add(run(5))
    after = printed("show", id_)
    assert after == (
        f"{before}Its runs now make something else of it: kp-langchain patterns show {id_} --now\n"
    )
    now = printed("show", id_, "--now")
    assert "6 runs of 5 tasks: 5 succeeded" in now
    done = cli("patterns", "admit", id_, "--digest", read, *DATABASE)
    assert "has another digest" in " ".join(done.stderr.split())
    assert printed("show", id_) == after
    printed("admit", id_, "--digest", now.rpartition("digest: ")[2].strip())
    assert printed("show", id_).endswith(now.rpartition("\n\n")[2])


def test_texts_of_runs_control_nothing() -> None:
    with TraceStore("runs.db") as store:
        store.add(*[run(at, HOSTILE, domain=HOSTILE) for at in range(5)])
        store.add(*[run(at, f"other_{at}", domain=HOSTILE) for at in range(10, 18)])
    name = json.loads(printed("--json"))["name"]
    for words in ((), ("--json",), ("show", name), ("show", name, "--json")):
        text = printed(*words)
        assert not set(text) & set("\x07\x1b\x9b\r\u202e\u2066"), words
        assert "ERROR forged" not in [line.strip() for line in text.splitlines()]
