"""What becomes of stored runs: verdicts, calibration, recall, and the commands about them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent

from kp_langchain import (
    DomainPolicy,
    KPExampleSelector,
    KPRetriever,
    ScoredTrace,
    TraceStore,
    to_few_shot,
)
from tests.agents import ASK, ScriptedChatModel, agent, call, say
from tests.cli import support_desk
from tests.golden.cases import ONE_BY_ONE, Cases, domain_of, of_database
from tests.golden.seen import Seen, Sixteenths, command, logged, working_folder
from tests.recall.words import Listening, middleware, passing_handler, rates

POLICY = DomainPolicy(threshold=0.45, visibility="network")
VERDICTS: dict[str, dict[str, Any]] = {
    "right": {"success": True},
    "right, unsure": {"success": True, "confidence": 0.2},
    "wrong": {"success": False},
    "wrong, unsure": {"success": False, "confidence": 0.6, "note": "asked bob@example.com"},
}
RUNS = {
    "two tools": [say("I search.", call("search", q="a"), call("add", a=1, b=2)), say("It is 42.")],
    "one tool": [say("I search.", call("search", q="a")), say("It is 42.")],
    "failed tool": [say("I try.", call("soft", x="a")), say("I could not do it.")],
}
TASKS = {
    "what is one pound in dollars today": "GBPUSD",
    "what is one pound in dollars tomorrow": "GBPUSD",
    "how much is one yen in dollars": "JPYUSD",
    "when should roses be pruned in spring": "ROSES",
}
ASKED = (
    "what is one pound in dollars today", "what is one euro in dollars today",
    "roses in spring", "nothing alike", "",
)  # fmt: skip


def of_verdicts() -> Cases:
    """Each run with each one and two verdicts, given by the handler or by the command."""
    with working_folder() as here:
        database = here / "runs.db"
        sequences = [
            names for length in (1, 2) for names in itertools.product(VERDICTS, repeat=length)
        ]
        for run, names in itertools.product(RUNS, sequences):
            name = f"{run}: {', '.join(names)}"
            yield name, _judged(database, name, run, names)
        yield from of_database(database)


def _judged(database: Path, name: str, run: str, names: tuple[str, ...]) -> list[Any]:
    domain = domain_of(name)
    with logged() as records:
        seen = Seen(domain, store=database, policy=POLICY)
        config: Any = {"callbacks": [seen.handler], "run_id": uuid4()}
        agent(*RUNS[run]).invoke(ASK, {**config, **ONE_BY_ONE})
        steps = [seen.all(records)]
        for at, verdict in enumerate(names):
            records.clear()
            seen.scored.clear()
            if (at + len(name)) % 2:
                seen.handler.report_outcome(config["run_id"], **VERDICTS[verdict])
                said: Any = None
            else:
                said = command(
                    "label", str(config["run_id"]), *_options(VERDICTS[verdict]), "--json",
                    database=database,
                )  # fmt: skip
            steps.append({"said": said, **seen.all(records)})
            steps.append(command("review", "--domain", domain, "--json", database=database))
        seen.handler.close()
    return steps


def _options(verdict: dict[str, Any]) -> Iterator[str]:
    yield "--success" if verdict["success"] else "--failure"
    for name in ("confidence", "note"):
        if name in verdict:
            yield from (f"--{name}", str(verdict[name]))


def of_support_desk() -> Cases:
    """Runs of a support desk from the first to a gate by worth, and every command about them."""
    with working_folder() as here:
        database = here / "runs.db"
        right = _play(database, range(72))
        yield from ((f"first: {name}", done) for name, done in of_database(database))
        verdicts = "".join(json.dumps({"id": a, "success": b}) + "\n" for a, b in right.items())
        (here / "verdicts.jsonl").write_text(verdicts)
        first = next(iter(right))
        for words in (
            ("label", "import", "verdicts.jsonl"),
            ("calibrate", "--domain", "support", "--dry-run", "--json"),
            ("calibrate", "--domain", "support", "--write", "--json"),
            ("calibrate", "show", "--json"),
            ("review", "stats", "--json"),
        ):
            yield " ".join(words), command(*words, database=database)
        yield "label again", command("label", "import", "verdicts.jsonl", database=database)
        _play(database, range(72, 112))
        yield from ((f"later: {name}", done) for name, done in of_database(database))
        for words in COMMANDS:
            line = [first if word == "ID" else word for word in words]
            done = command(*line, database=database)
            if "next" in words:  # which runs are drawn, their random ids decide
                done["stdout"] = sorted(row["reason"] for row in done["stdout"])
            yield f"later: {' '.join(words)}", done


COMMANDS = (
    ("review", "--json", "--decision", "kept"),
    ("review", "--json", "--min-score", "0.6", "--sort", "score", "--limit", "5"),
    ("review", "--json", "--search", "Answer", "--limit", "3"),
    ("review", "--json", "--rule", "single_tool", "--limit", "3"),
    ("review", "--json", "--tool", "ledger", "--limit", "3"),
    ("review", "--json", "--where", "name=LangGraph", "--limit", "2"),
    ("review", "--json", "--since", "2d", "--limit", "2"),
    ("review", "--json", "--since", "yesterday"),
    ("review", "--decision", "none"),
    ("review", "show", "ID"),
    ("review", "show", "nothing"),
    ("export", "--limit", "2"),
    ("recall", "--credit", "--json"),
    ("label", "next", "--json", "--limit", "1000"),
    ("label", "nothing", "--success"),
    ("label", "ID"),
    ("calibrate", "remove", "support"),
    ("calibrate", "show", "--json"),
    ("calibrate", "--domain", "nothing", "--json"),
    ("import", "absent.jsonl"),
    ("unknown",),
)


def _play(database: Path, numbers: range) -> dict[str, bool]:
    """Play runs; return whether each was right, by its id."""
    right = {}
    with TraceStore(database) as store:
        model = ScriptedChatModel()
        playing = create_agent(model, list(support_desk.TOOLS))
        with logged() as records:
            seen = Seen("support", store=store)
            for number in numbers:
                run, run_id = support_desk.Run(number), uuid4()
                model.answers.extend(run.answers())
                config: Any = {
                    "callbacks": [seen.handler], "run_id": run_id,
                    "metadata": {"kp_task": run.task},
                }  # fmt: skip
                playing.invoke({"messages": [("user", run.objective)]}, config)
                seen.all(records)
                right[str(run_id)] = run.is_right
            seen.handler.close()
    return right


def of_recall() -> Cases:
    """What later runs are shown, in each of the ways."""
    with working_folder() as here, TraceStore(here / "runs.db") as store:
        kept = [_keep(store, task, pair) for task, pair in TASKS.items()]
        yield "few-shot of all", {"text": to_few_shot([one.trace for one in kept])}
        yield "few-shot, short", {"text": to_few_shot([one.trace for one in kept], max_tokens=150)}
        yield from ((f"first: {name}", found) for name, found in _found(store))
        for task in ASKED:
            yield f"{task!r}: middleware", _shown(store, task)
        yield from of_database(here / "runs.db")
        with TraceStore(here / "runs.db") as again:  # one that counts at once who was shown what
            yield from ((f"later: {name}", found) for name, found in _found(again))


def _found(store: TraceStore) -> Cases:
    for task, floor in itertools.product(ASKED, (0.2, 0.5, 0.9)):
        options: Any = {"store": store, "embedder": Sixteenths(), "floor": floor, "limit": 3}
        documents = KPRetriever("finance", **options).invoke(task)
        selector = KPExampleSelector("finance", **options)
        yield f"{task!r} from {floor}", {
            "documents": [{"text": one.page_content, **one.metadata} for one in documents],
            "examples": selector.select_examples({"task": task}) if task else None,
        }  # fmt: skip


def _keep(store: TraceStore, task: str, pair: str) -> ScoredTrace:
    with logged():
        seen = Seen("finance", store=store, policy=DomainPolicy(threshold=0.2))
        answers = [say("I look it up.", call("rates", pair=pair)), say(f"{pair} is 1.27.")]
        playing = create_agent(Listening(answers, asked=[]), [rates])
        playing.invoke({"messages": [("user", task)]}, {"callbacks": [seen.handler]})
        assert seen.handler.flush(120)
        seen.handler.close()
    (scored,) = seen.scored
    return scored


def _shown(store: TraceStore, task: str) -> Any:
    model = Listening([say("One is 1.08.")], asked=[])
    shows = middleware(store)
    playing = create_agent(model, [rates], middleware=[shows])
    recording = passing_handler(store)
    playing.invoke({"messages": [("user", task)]}, {"callbacks": [recording]})
    assert recording.flush(120)  # the next search counts what this run was shown
    return [[f"{one.type}: {one.text}" for one in asked] for asked in model.asked]
