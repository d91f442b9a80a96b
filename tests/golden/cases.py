"""Cases that stand alone: runs of a real loop, and what depends on nothing but its input.

Situations, answers of providers and recorded runs are played; redaction, scores and imported files
are not.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kp_langchain import ReasoningTrace
from kp_langchain.redaction import redact
from tests import recorded
from tests.golden.seen import (
    Seen,
    canonical,
    command,
    logged,
    normal,
    scorer,
    short_hash,
    working_folder,
)
from tests.importing import spans
from tests.recording import provider_answers, situations
from tests.recording.test_situations import SITUATIONS  # all modules of situations

Cases = Iterator[tuple[str, Any]]
ONE_BY_ONE = {"max_concurrency": 1}  # calls of tools, so that they begin in order
CHUNK = 25  # recorded runs that share a memory and a store
# Tools and runs that go at once end in any order.
UNORDERED = (
    "parallel tool calls", "parallel tool calls, async", "one of two parallel tool calls fails",
    "create_agent.batch of 3", "create_agent.abatch of 3",
)  # fmt: skip
CORPORA = recorded.FOLDER.parent / "redaction"
WITHOUT_MODEL = (
    "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"
    "from kp_langchain.cli.app import main; main()"
)
WORDS = "ledger quarter search city weather order refund train cheap blue error found not".split()


def of_situations() -> Cases:
    """Every situation with a store, and what the commands say of all of them."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        for one in SITUATIONS:
            if one.needs and one.needs not in sys.modules:
                continue
            with logged() as records:
                is_ordered = one.name not in UNORDERED
                # The rows of unordered ones would differ in more than their order.
                seen = Seen(domain_of(one.name), store=database if is_ordered else None)
                done = one.go(seen.handler)
                if asyncio.iscoroutine(done):
                    asyncio.run(done)
                assert seen.handler.flush(60)
                situations._unclosed.clear()
                yield one.name, seen.all(records, is_ordered=is_ordered)
                seen.handler.close()
        for name, case in of_database(database):
            if name != "export --all: status":  # it says how many situations a release can play
                yield name, case


def of_answers() -> Cases:
    """Every answer of a provider."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        for one in provider_answers.ANSWERS:
            with logged() as records:
                seen = Seen(domain_of(one.name), store=database)
                provider_answers.play(one, seen.handler)
                yield one.name, seen.all(records)
                seen.handler.close()
        yield from of_database(database)


def domain_of(name: str) -> str:
    """Return a domain of its own for a case."""
    return re.sub(r"\W+", "-", name)


def of_database(database: Path) -> Cases:
    """What review, stats and export say of a store, a line each."""
    for words in (
        ("review", "--json", "--limit", "100000"),
        ("review", "stats", "--json"),
        ("export", "--all", "--with-identifiers"),
    ):
        done = command(*words, database=database)
        name = " ".join(words[:2])
        yield f"{name}: status", {"exit": done["exit"], "stderr": done["stderr"]}
        rows = sorted((normal(row) for row in done["stdout"]), key=canonical)
        known: Counter[str] = Counter()
        for row in rows:
            about = _about(row)
            known[about] += 1
            yield f"{name}: {about} {known[about]}", row


def _about(row: Any) -> str:
    """Return a few words on a line of output, so that it is compared with the same one."""
    if not isinstance(row, dict):
        return "line"
    trace = row.get("metadata", {})
    task = row.get("task", {}).get("objective") if trace else row.get("objective")
    return f"{row.get('domain') or trace.get('task_domain')} {str(task or '')[:40]}".strip()


def of_recorded_runs(every: int = 1) -> Cases:
    """Real recorded runs in chunks, each in another mode; one case a chunk.

    Args:
        every: Play each chunk, or only each second and so on.
    """
    modes = [
        (mode, errors, use_async)
        for mode, errors, use_async in itertools.product(
            recorded.MODES, recorded.ERRORS, (False, True)
        )
        if not (mode == "wrapped" and use_async)
    ]
    runs = itertools.chain(recorded.load(), recorded.load("runs2.jsonl.gz"))
    chunks = iter(lambda: list(itertools.islice(runs, CHUNK)), [])
    for number, chunk in enumerate(chunks):
        if number % every == 0:
            mode, errors, use_async = modes[number % len(modes)]
            name = f"{number} {mode} {errors} {'a' * use_async}sync"
            yield name, _chunk(chunk, mode, errors, use_async=use_async)


def _chunk(runs: Any, mode: str, errors: str, *, use_async: bool) -> list[Any]:
    replay = recorded.replayer()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        seen_runs: list[Any] = []
        handlers: dict[str, Seen] = {}
        for run in runs:
            domain = recorded.DOMAINS.get(run["domain"], run["domain"])
            with logged() as records:
                seen = handlers.setdefault(domain, Seen(domain, store=database))
                seen.scored.clear()
                if use_async:
                    asyncio.run(replay.areplay(run, [seen.handler], mode, errors, ONE_BY_ONE))
                else:
                    replay.replay(run, [seen.handler], mode, errors, ONE_BY_ONE)
                seen_runs.append(seen.all(records))
        for seen in handlers.values():
            seen.handler.close()
        return [*seen_runs, *of_database(database)]


def of_redaction() -> Cases:
    """Each text of the tests' tables, in groups by its hash, so that it may move between tables."""
    from tests.redaction import cases

    notations = {family: tuple(texts) for family, texts in cases.DRAWN["notations"].items()}
    goes, stays, becomes = (cases.CASES[name] for name in ("goes", "stays", "becomes"))
    tables = (
        cases.SECRETS, cases.STRUCT, cases.IDENTIFIERS, cases.LOOKALIKES, cases.BENIGN, notations,
        goes["labelled numbers"], stays["other numbers"], stays["names and values"],
        becomes["parts"],
    )  # fmt: skip
    groups: dict[str, dict[str, Any]] = {}
    for text in _texts(tables):
        name = short_hash(repr(text))
        group = groups.setdefault(name[:3], {})
        if name not in group:
            group[name] = _redacted(text)
    yield from sorted(groups.items())


def _texts(value: Any) -> Iterator[Any]:
    """Return the texts and mappings in nested tables."""
    if isinstance(value, str | dict):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    if isinstance(value, dict):
        yield from _texts(list(value.values()))


def of_redaction_corpora() -> Cases:
    """The corpora beside the checkout, by file and line, without what is only to take long."""
    for path in sorted(set(CORPORA.glob("*.jsonl*")) - {CORPORA / "adversarial.jsonl"}):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for number, line in enumerate(text.splitlines()):
            row = json.loads(line)
            (key,) = row.keys() & {"value", "text", "object"}
            yield f"{path.stem} {number}", _redacted(row[key])


def _redacted(value: Any) -> list[Any]:
    return [
        {"value": repr(done.value), "counts": done.counts}
        for done in (redact(value), redact(value, level="private"))
    ]


def of_scores() -> Cases:
    """Drawn traces, each compared with those before it, and the same by the command."""
    memory = scorer()
    draw = random.Random("scores")
    with working_folder() as here:
        lines = []
        for number in range(400):
            trace = _trace(draw, number)
            breakdown = memory.evaluate(ReasoningTrace.model_validate(trace))
            yield f"trace {number}", {"trace": trace, "breakdown": breakdown.to_dict()}
            lines.append(json.dumps(trace))
        (here / "traces.jsonl").write_text("\n".join([*lines[:40], "{", '{"no": "trace"}']))
        done = command("score", "traces.jsonl", program=WITHOUT_MODEL)
        for number, line in enumerate([*done.pop("stdout"), done]):
            yield f"command {number}", line


def _trace(draw: random.Random, number: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for at in range(draw.randint(1, 12)):
        kind = draw.choice(("thought", "tool_call", "observation", "error_recovery"))
        step: dict[str, Any] = {"step_id": at, "type": kind}
        if draw.random() < 0.9:
            step["content"] = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 30)))
        if kind != "thought":
            step["tool"] = {"name": draw.choice(("ledger", "search", "mail", "python"))}
        if kind == "tool_call":
            step["input"] = {"q": draw.choice(WORDS)}
        steps.append(step)
    domains = ("default", "finance", "code", "medical", "customer_service", "legal", "science")
    return {
        "id": f"kp:trace:drawn-{number}",
        "metadata": {"task_domain": draw.choice(domains), "success": draw.random() < 0.7},
        "task": {"objective": " ".join(draw.choice(WORDS) for _ in range(6))},
        "steps": steps,
        "outcome": {"result_summary": draw.choice(WORDS), "confidence": draw.randint(0, 10) / 10},
    }


def of_imports() -> Cases:
    """Files of other tools, written by hand."""
    question = {"role": "user", "content": "what is the answer?"}
    calls = [{"id": "c1", "function": {"name": "search", "arguments": '{"q": "a"}'}}]
    called = {"role": "assistant", "content": "I search.", "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    answer = {"role": "assistant", "content": "It is 42."}
    files: dict[str, list[Any]] = {
        "spans": spans.lines(*spans.genai_spans()),
        "failed spans": spans.lines(
            *spans.genai_spans(having={"error.type": "TimeoutError"}, status={"code": 2})
        ),
        "messages": [
            {"id": "one", "messages": [question, called, result, answer]},
            {"id": "two", "messages": [question, called, {**result, "status": "error"}, answer],
             "domain": "finance", "success": False, "confidence": 0.3},
            {"id": "three", "messages": [question, called], "kp_namespace": "tenant"},
            {"id": "four", "messages": [question], "objective": "find bob@example.com"},
            {"id": "one", "messages": [question, answer]},
            {"messages": []}, {"messages": "none"}, {"id": 5}, [], "text", 7,
        ],
    }  # fmt: skip
    for name, values in files.items():
        with working_folder() as here:
            path, database = here / "file.jsonl", here / "runs.db"
            path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
            for times in ("first", "again"):
                yield (
                    f"{name}: {times}",
                    command(
                        "import", path.name, "--json", database=database, program=WITHOUT_MODEL
                    ),
                )
            for case, done in of_database(database):
                yield f"{name}: {case}", done
