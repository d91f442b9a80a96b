"""What depends on nothing but its input: redaction, scores, and imported files."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from typing import Any

from kp_langchain import ReasoningTrace
from kp_langchain.redaction import redact
from tests.golden.live import Cases, of_database
from tests.golden.normal import short_hash
from tests.golden.seen import command, scorer
from tests.golden.stored import folder
from tests.importing import spans
from tests.recorded import FOLDER

CORPORA = FOLDER.parent / "redaction"
WITHOUT_MODEL = (
    "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"
    "from kp_langchain.cli.app import main; main()"
)
WORDS = "ledger quarter search city weather order refund train cheap blue error found not".split()


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
    with folder() as here:
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
        with folder() as here:
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
