"""What the command line says of runs that repeat a kept one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.printable import short_id
from tests.agents import ASK, handler, searching
from tests.commands import cli


def printed(*words: str) -> str:
    """Run a command, and return what it prints."""
    done = cli(*words, "--database", "runs.db")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def ids() -> Iterator[list[str]]:
    """The trace ids of three equal runs: one replaced, the one that did so, and a twin."""
    with TraceStore("runs.db") as store:
        scored: list[Any] = []
        for confidence in (0.5, 0.8, 0.6):
            watching = handler(
                store=store,
                policy=DomainPolicy(threshold=0.0),
                outcome=lambda _, sure=confidence: {"confidence": sure},
                on_scored=scored.append,
            )
            searching().invoke(ASK, {"callbacks": [watching]})
            assert watching.flush(60)
        yield [one.trace.id for one in scored]


def test_review_says_what_is_a_twin_and_what_was_replaced(ids: list[str]) -> None:
    lines = [line.split() for line in printed("review").splitlines() if "answer?" in line]
    decisions = {"twin", "kept", "replaced"}
    assert [word for words in lines for word in words if word in decisions] == [
        "twin", "kept", "replaced",
    ]  # fmt: skip
    replaced, kept, twin = (printed("review", "show", trace_id) for trace_id in ids)
    assert "\nreplaced: score" in replaced
    assert re.search(
        rf"\nreplaced by +{short_id(ids[1])}, which repeats it and was surer: ", replaced
    )
    assert "\nkept: score" in kept
    assert "\ntwin: score" in twin
    line = (
        rf"\ntwin of +{short_id(ids[1])}, similarity 1\.00, which was kept; this one is not surer"
    )
    assert re.search(line, twin)
    shown = json.loads(printed("review", "show", ids[2], "--json"))
    assert (shown["decision"], shown["twin_of"], shown["similarity_to_twin"]) == (
        "below_threshold",
        ids[1],
        1.0,
    )


def test_label_says_why_a_success_is_not_kept(ids: list[str]) -> None:
    assert "below_threshold -> kept" in printed("label", ids[2], "--success")
    assert "kept -> below_threshold" not in (said := printed("label", ids[0], "--success"))
    beginning = ids[2].removeprefix("kp:trace:")[:8]
    assert f"below_threshold, because it repeats {beginning}, which is kept" in said
