"""A run is redacted as a whole, and the keys to find it by are hashed where they are private."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import stat
import urllib.parse
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from kp_langchain import (
    DomainPolicy,
    ReasoningTrace,
    Scorer,
    TraceStore,
    trace_from_messages,
)
from kp_langchain.recording.bounds import Counters
from kp_langchain.recording.redactor import Redactor
from kp_langchain.store import StoredRun
from tests.agents import ASK, agent, call, handler, run, say
from tests.commands import write_user_config
from tests.recording.playing import SECRET, Events, last, stored

STRONG = "Zk7#mQ2v!pLd"
MIXED = "plover83"
WORD = "sunflower"
PIN = "4471"
KEY = "b3f0a9c2d1e84f7796a5c4d3e2f1a0b9"
SEED = "ripple sunset velvet orbit canyon ladder mushroom pelican tornado glimpse harvest zebra"
ASKED = "What is the password of your account?"
DONE = say("Done.")

_outputs: dict[str, str] = {}


@pytest.fixture(autouse=True)
def no_outputs() -> None:
    _outputs.clear()


@tool
def fill(selector: str, text: str) -> str:
    """Type a text."""
    return _outputs.get("fill", "ok").format(text=text)


@tool
def bash(command: str) -> str:
    """Run a command."""
    return _outputs.get(command, "ok")


@tool
def login(username: str, password: str) -> str:
    """Log in."""
    return _outputs.get("login", "ok").format(password=password)


@tool
def ask_user(question: str) -> str:
    """Ask the user."""
    return _outputs.get("ask_user", "")


@tool
def pause(question: str) -> str:
    """Wait for the user."""
    return str(interrupt(question))


@tool("production")
def deploy(password: str) -> str:
    """Deploy."""
    return password


TOOLS = (fill, bash, login, ask_user, pause)


class Run(NamedTuple):
    """A run of an agent.

    Attributes:
        name: What it shows.
        gone: The texts of which none may be left.
        messages: Its input; the texts of the turns, if it has several.
        answers: What the model answers.
        outputs: What tools return, by command or name of the tool.
        stays: Texts that must be left.
    """

    name: str
    gone: Sequence[str]
    messages: Sequence[AnyMessage | str]
    answers: Sequence[AIMessage]
    outputs: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes
    stays: Sequence[str] = ()


def asked(question: str, answer: str) -> list[AnyMessage]:
    return [HumanMessage("Log me in"), AIMessage(question), HumanMessage(answer)]


def task(text: str) -> list[AnyMessage]:
    return [HumanMessage(text)]


def types(text: str, said: str = "") -> AIMessage:
    return say(said, call("fill", selector="#x", text=text))


def runs(command: str, said: str = "") -> AIMessage:
    return say(said, call("bash", command=command))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


RUNS = [
    Run("asked, strong", [STRONG], asked(ASKED, STRONG), [types(STRONG), DONE]),
    Run("asked, mixed", [MIXED], asked(ASKED, MIXED), [types(MIXED), DONE]),
    Run("asked, word", [WORD], asked(ASKED, WORD), [types(WORD), say(f"Typed {WORD}; done.")]),
    Run("asked, pin", [PIN], asked("What is your PIN?", PIN), [types(PIN), DONE]),
    Run("asked, key", [KEY], asked("Which API key?", KEY), [runs(f"curl -H 'K: {KEY}'"), DONE]),
    Run(
        "asked, seed",
        [SEED[:40]],
        asked("Please type your seed phrase.", SEED),
        [types(SEED), DONE],
    ),
    Run("asked, de", [WORD], asked("Wie lautet Ihr Passwort?", WORD), [types(WORD), DONE]),
    Run("asked, fr", [WORD], asked("Quel est votre mot de passe ?", WORD), [types(WORD), DONE]),
    Run("asked, ru", [MIXED], asked("Введите пароль", MIXED), [types(MIXED), DONE]),
    Run("asked, ja", [MIXED], asked("パスワードを入力してください", MIXED), [types(MIXED), DONE]),
    Run(
        "asked in the turn before, word",
        [WORD],
        ["Log in as bob", WORD],
        [say("What is your password?"), types(WORD), DONE],
    ),
    Run(
        "asked in the turn before, pin",
        [PIN],
        ["Unlock the door", PIN],
        [say("What is your PIN?"), types(PIN), DONE],
    ),
    Run(
        "named two turns before",
        [STRONG],
        [f"my password is {STRONG}", "wait", "now log in"],
        [say("noted"), say("ok"), types(STRONG), DONE],
    ),
    Run(
        "asked by a tool, word",
        [WORD],
        task("Log in"),
        [say("", call("ask_user", question="What is the password?")), types(WORD), DONE],
        {"ask_user": WORD},
    ),
    Run(
        "asked by a tool, pin",
        [PIN],
        task("Log in"),
        [say("", call("ask_user", question="What is the PIN?")), types(PIN), DONE],
        {"ask_user": PIN},
    ),
    Run(
        "the task names, the tool types and echoes",
        [WORD],
        task(f"Log in as bob, password {WORD}"),
        [types(WORD), say(f"Typed {WORD}; done.")],
        {"fill": "typed {text} into #x"},
    ),
    Run(
        "a thought names",
        [WORD],
        task("Log in"),
        [types(WORD, f"I use the password {WORD}."), DONE],
    ),
    Run(
        "an input names, the output echoes",
        [WORD],
        task("Log in"),
        [say("", call("login", username="bob", password=WORD)), DONE],
        {"login": "welcome, you used {password}"},
    ),
    Run(
        "bare first, named later, word",
        [WORD],
        task("deploy"),
        [runs("cat pw"), runs(f"mysql -uroot --password={WORD}"), DONE],
        {"cat pw": f"{WORD}\n"},
    ),
    Run(
        "an error has it",
        [STRONG],
        task(f"password is {STRONG}"),
        [runs("psql"), DONE],
        {"psql": f"connection as bob/{STRONG} failed"},
    ),
    Run(
        "ordinary words stay",
        [],
        asked(ASKED, WORD),
        [types(WORD), runs("oil"), say("We have sunflower oil.")],
        {"oil": "sunflower oil, 3.50; 4 sunflower seeds"},
        ["sunflower oil, 3.50; 4 sunflower seeds", "We have sunflower oil."],
    ),
    Run(
        "counts stay",
        [],
        asked("What is your PIN?", PIN),
        [types(PIN), runs("count"), say("There are 4471 rows.")],
        {"count": '{"count": 4471}'},
        ["There are 4471 rows.", "4471}"],
    ),
    Run(
        "common words stay",
        [],
        task("Log in with password: changeme"),
        [
            say("", call("login", username="admin", password="admin")),  # noqa: S106
            say("The admin is in; test passed."),
        ],
        {},
        ["The admin is in; test passed."],
    ),
    Run("a refusal stays", [], asked(ASKED, "no"), [say("There is no login.")], {}, ["no login"]),
]


def texts_of(trace: ReasoningTrace) -> str:
    steps = [json.dumps(step.model_dump(mode="json"), ensure_ascii=False) for step in trace.steps]
    return "\n".join([trace.task.objective, *steps, trace.outcome.result_summary])


def left_in(texts: str, gone: Sequence[str]) -> list[str]:
    return [one for one in gone if one in texts or json.dumps(one)[1:-1] in texts]


def thread() -> str:
    """Return the name of a thread of which this process knows nothing."""
    return str(uuid4())


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("kp.db*"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_what_a_run_names_is_in_no_part_of_it(run: Run, folder: Path) -> None:
    _outputs.update(run.outputs)
    watching = handler(policy=DomainPolicy(keep="all"), store=folder / "kp.db")
    has_turns = isinstance(run.messages[0], str)
    graph = agent(*run.answers, tools=TOOLS, checkpointer=InMemorySaver() if has_turns else None)
    config: Any = {"configurable": {"thread_id": thread()}}
    for messages in [[one] for one in run.messages] if has_turns else [run.messages]:
        scored = last(watching, graph, {"messages": messages}, **config)
    texts = texts_of(scored.trace)
    assert left_in(texts, run.gone) == []
    assert [one for one in run.stays if one not in texts] == []
    assert not scored.withheld
    kept = bytes_in(folder)
    assert [one for one in run.gone if len(one) > len(PIN) and one.encode() in kept] == []


@pytest.mark.parametrize("secret", [STRONG, MIXED, WORD, PIN])
@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_secret_that_resumes_a_graph_is_in_no_part_of_the_run(
    secret: str, is_elsewhere: bool, folder: Path
) -> None:
    question = f"What is the {'PIN' if secret == PIN else 'password'}?"
    first = handler(store=folder / "kp.db" if is_elsewhere else None)
    saver, config = InMemorySaver(), {"configurable": {"thread_id": thread()}}
    asking = [runs("cat pw"), say("", call("pause", "c1", question=question))]
    graph = agent(*asking, tools=TOOLS, checkpointer=saver)
    named = f"log in with {STRONG}, which is the password: {STRONG}"
    graph.invoke({"messages": task(named)}, {**config, "callbacks": [first]})
    assert first.flush(60)
    if is_elsewhere:
        first.close(60)
        assert b"cat pw" in bytes_in(folder)
        assert STRONG.encode() not in bytes_in(folder)
    second = handler(store=folder / "kp.db" if is_elsewhere else None)
    graph = agent(types(secret), DONE, tools=TOOLS, checkpointer=saver)
    scored = last(second, graph, Command(resume=secret), **config)
    assert scored.trace.task.objective.startswith("log in with [REDACTED")
    assert left_in(texts_of(scored.trace), [secret, STRONG]) == []


@pytest.mark.parametrize("role", ["assistant", "system", "developer"])
def test_only_a_models_question_is_answered(role: str) -> None:
    question, answer = {"role": role, "content": ASKED}, {"role": "user", "content": WORD}
    messages = [*task("Log me in"), question, answer, types(WORD), DONE]
    assert (WORD in texts_of(trace_from_messages(messages))) is (role != "assistant")


LOGIN = [types(STRONG), say("", call("login", username="b", password=STRONG)), DONE]


def test_notes_of_verdicts_are_clean_of_what_the_run_named() -> None:
    note = f"used {STRONG}"
    watching = handler(store="kp.db", verifiers=[lambda _: {"success": True, "note": note}])
    scored = last(watching, agent(*LOGIN, tools=TOOLS), {"messages": task("log in")})
    for run_id in (str(scored.run_id), scored.trace.id):
        watching.report_outcome(run_id, success=False, note=note)
    assert watching.flush()
    assert watching.store is not None
    notes = [verdict.note for verdict in watching.store.verdicts(scored.trace.id)]
    assert notes == ["used [REDACTED:password]"] * 3


def test_what_a_note_names_goes_from_the_run() -> None:
    watching, run_id = handler(store="kp.db"), uuid4()

    @tool
    def judge(q: str) -> str:
        """Judge the run under way."""
        watching.report_outcome(run_id, success=True, note=f"the password is: {STRONG}")
        return "ok"

    graph = agent(types(STRONG), say("", call("judge", q="x")), DONE, tools=(*TOOLS, judge))
    scored = last(watching, graph, {"messages": task("log in")}, run_id=run_id)
    assert left_in(texts_of(scored.trace), [STRONG]) == []


def test_redactor_embedder_log_and_store_see_nothing_that_another_part_names(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    person = "jane.doe@example.com"

    class Reading:
        def embed(self, texts: Any) -> Any:
            seen.extend(texts)
            return np.ones((len(texts), 4), dtype="float32")

    def redactor(text: str) -> str:
        seen.append(text)
        return text

    with caplog.at_level(logging.DEBUG, "kp_langchain"), TraceStore(folder / "kp.db") as store:
        options: Any = {"redactor": redactor, "scorer": Scorer(embedder=Reading())}
        watching = handler(store=store, policy=DomainPolicy(keep="all"), **options)
        graph = agent(*LOGIN, tools=TOOLS)
        scored = last(watching, graph, {"messages": task(f"log in {person} with {SECRET}")})
        assert stored(store, scored).trace == scored.trace
    assert seen
    for private in (SECRET, STRONG, person):
        assert not any(private in text for text in seen)
        assert private not in scored.trace.model_dump_json() + caplog.text
        assert private.encode() not in bytes_in(folder)


def test_a_word_that_is_a_password_stays_the_name_of_domains_and_tools() -> None:
    graph = agent(say("", call("production", password="production")), DONE, tools=(deploy,))  # noqa: S106
    scored = last(handler("production"), graph, {"messages": task("deploy")})
    assert scored.trace.metadata.task_domain == "production"
    assert scored.trace.steps[0].tool is not None
    assert scored.trace.steps[0].tool.name == "production"
    assert scored.trace.steps[1].content == "[REDACTED:password]"


def test_a_private_run_keeps_identifiers_alone() -> None:
    policy = DomainPolicy(privacy_level="private", visibility="private")
    inputs = {"messages": task("log in for bob@example.org")}
    texts = texts_of(run(agent(*LOGIN, tools=TOOLS), inputs, policy=policy).trace)
    assert "bob@example.org" in texts
    assert STRONG not in texts


def test_what_is_harmless_in_a_private_run_is_not_taken_for_harmless_elsewhere() -> None:
    redaction, text = Redactor(Counters(), 1000), "log in for bob@example.org"
    redaction.learn([text], "private")
    assert redaction.text(text, "private") == text
    assert redaction.text(text, "aggregated") == "log in for [REDACTED:email]"


@pytest.mark.parametrize(
    ("other", "is_known"),
    [
        ({"session_id": "one"}, True), ({"session_id": "two"}, False),
        ({"session_id": "one", "kp_namespace": "other"}, False),
    ],
)  # fmt: skip
def test_only_the_same_conversation_is_cleaned_of_what_it_named(
    other: dict[str, str], is_known: bool
) -> None:
    session = thread()

    def objective(text: str, **metadata: str) -> str:
        metadata["session_id"] += session
        scored = last(handler(), agent(DONE), {"messages": task(text)}, metadata=metadata)
        return scored.trace.task.objective

    objective(f"my password is {STRONG}", session_id="one")
    expected = "type [REDACTED:password]" if is_known else f"type {STRONG}"
    assert objective(f"type {STRONG}", **other) == expected


def test_a_long_conversation_forgets_what_it_named_first(caplog: pytest.LogCaptureFixture) -> None:
    session = thread()

    def objective(text: str) -> str:
        inputs = {"messages": task(text)}
        scored = last(handler(), agent(DONE), inputs, metadata={"session_id": session})
        return scored.trace.task.objective

    def secrets(letter: str, count: int) -> list[str]:
        return [f"{STRONG}{number:03}{letter}" for number in range(count)]

    for letter in "ab":
        objective("\n".join(f"password: {secret}" for secret in secrets(letter, 150)))
    assert objective(f"type {secrets('b', 150)[-1]}") == "type [REDACTED:password]"
    assert "names more secrets than" not in caplog.text
    many = "\n".join(f"password: {secret}" for secret in secrets("c", 201))
    assert STRONG not in objective(many)
    assert "names more secrets than" in caplog.text


_FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda secret: json.dumps({"a": secret}),
    lambda secret: json.dumps(json.dumps([secret])),
    lambda secret: repr([secret]),
    urllib.parse.quote,
    urllib.parse.quote_plus,
    lambda secret: _base64(secret),
    lambda secret: _base64(f"bob:{secret}"),
    lambda secret: base64.urlsafe_b64encode(f"u:{secret}".encode()).decode().rstrip("="),
    str.upper,
    str.lower,
    lambda secret: f"{secret[:13]}…",
)
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789!#%*+"


@st.composite
def _secrets(draw: st.DrawFn) -> str:
    drawn = draw(st.text(_LETTERS, min_size=10, max_size=30))
    return f"aB3{drawn}x7Q"


@given(
    secret=_secrets(),
    places=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(_FORMS)), min_size=1, max_size=4),
    names_at=st.integers(0, 2),
)
def test_a_strong_secret_named_anywhere_is_nowhere_in_any_form(
    secret: str, places: list[tuple[int, Callable[[str], str]]], names_at: int
) -> None:
    parts = ["do it", "I do it.", "ls", "done", "All is done."]
    forms = [write(secret) for _, write in places]
    for (at, _), form in zip(places, forms, strict=True):
        parts[at] += f" with {form} ;"
    named = {"password": secret} if names_at == 1 else {"x": "y"}
    if names_at == 0:
        parts[0] = f"The password is: {secret}\n{parts[0]}"
    if names_at == 2:
        parts[3] += f"\nAPP_PASSWORD='{secret}'\n"
    trace = trace_from_messages(
        [
            HumanMessage(parts[0]),
            say(parts[1], call("bash", "c1", command=parts[2], **named)),
            ToolMessage(parts[3], tool_call_id="c1"),
            AIMessage(parts[4]),
        ]
    )
    texts = texts_of(trace)
    assert left_in(texts, [secret, *(form.rstrip("…") for form in forms)]) == []


# ------------------------------------------------------------------ what cannot be redacted


def test_rules_and_redactor_reach_every_text_of_a_run() -> None:
    Path("kp.toml").write_text('[redaction]\npatterns = { ticket = "TICK-[0-9]+" }\n')
    graph = agent(say("I see TICK-1 of Miller", call("search", q="TICK-2")), say("TICK-3 is 42"))
    inputs = {"messages": [("user", "Where is TICK-4 of Miller?")]}
    scored = run(graph, inputs, redactor=lambda text: text.replace("Miller", "[NAME]"))
    written = scored.trace.model_dump_json()
    assert "TICK-" not in written
    assert "Miller" not in written
    assert written.count("[REDACTED:ticket]") >= 4
    assert "[NAME]" in written
    nothing = last(handler(redactor=lambda text: ""), metadata={"kp_domain": "finance"}).trace
    assert (nothing.task.objective, nothing.metadata.task_domain) == ("(removed)", "default")


def test_a_rule_allows_a_word_that_is_typed_where_another_part_calls_it_a_password() -> None:
    write_user_config(f'[redaction]\nallow = ["{WORD}"]\n')
    scored = run(agent(types(WORD, f"I use the password {WORD}."), DONE, tools=TOOLS))
    assert f"the password {WORD}." in texts_of(scored.trace)


@pytest.mark.parametrize("part", ["learn", "redact", "the caller's"])
def test_what_cannot_be_redacted_is_dropped_counted_and_never_contributed(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the text of the run")

    if part == "the caller's":
        redactor: Any = broken
    else:
        redactor = None
        monkeypatch.setattr(f"kp_langchain.redaction.session.Session.{part}", broken)
    policy = DomainPolicy(visibility="network", threshold=0.0)
    watching = handler("finance", policy=policy, redactor=redactor, store="kp.db")
    scored = last(watching, inputs={"messages": task("write to ada@firm.test")})
    assert (scored.decision, scored.withheld) == ("below_threshold", "redaction failed")
    assert scored.trace.metadata.task_domain == "finance"
    assert not re.search("ada@|I search|result for|the answer", scored.trace.model_dump_json())
    assert watching.stats()["redaction_errors"] > 0
    assert "redaction failed (" in caplog.text
    assert "the text of the run" not in caplog.text


def test_a_part_that_redaction_gives_up_on_keeps_the_run_from_being_contributed() -> None:
    scored = run(agent(say("/home/x" * 500)), policy=DomainPolicy(threshold=0.0))
    assert scored.trace.steps[0].content == "[REDACTED:failed]"
    assert scored.decision == "below_threshold"


def test_a_run_is_withheld_if_its_part_before_a_pause_could_not_be_redacted() -> None:
    def fails(_: str) -> str:
        raise RuntimeError

    config: Any = {"configurable": {"thread_id": thread()}}
    graph = agent(say("", call("pause", question="ok?")), DONE, tools=TOOLS,
                  checkpointer=InMemorySaver())  # fmt: skip
    with handler(store="kp.db", redactor=fails) as first:
        graph.invoke(ASK, {**config, "callbacks": [first]})
    second = handler(store="kp.db", redactor=str, policy=DomainPolicy(threshold=0.0))
    scored = last(second, graph, Command(resume="yes"), **config)
    assert (scored.withheld, scored.decision) == ("redaction failed", "below_threshold")


# ------------------------------------------------------------------ secrets beside a cut

TOKEN = "ghp_" + "a1B2c3D4e5" * 4


@pytest.mark.parametrize("side", ["beginning", "end"])
@pytest.mark.parametrize("offset", range(0, 200, 18))
def test_a_secret_across_the_bound_of_a_text_is_seen_whole(
    side: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_MAX_TEXT_CHARS", "300")
    filler, long = "w" * offset + " ", " and so on " * 800
    text = filler + TOKEN + long if side == "beginning" else f"{long}{TOKEN} {filler}"
    trace = run(agent(say(text, call("search", q=text)), say("42"))).trace
    written = trace.model_dump_json()
    assert all(TOKEN[at : at + 12] not in written for at in range(len(TOKEN) - 12))
    content = trace.steps[0].content or ""
    assert len(content) <= 300
    near = offset if side == "beginning" else 9
    assert content[:near][:50] == text[:near][:50]
    assert content[-min(offset, 50) - 1 :] == text[-min(offset, 50) - 1 :]
    assert "characters left out]" in content


@pytest.mark.parametrize(
    "where", ["one text", "beside another", "key", "quoted mark", "name", "beginning", "end"]
)
def test_a_piece_of_a_secret_beside_a_cut_is_left_out(where: str) -> None:
    """Also where redaction makes the text so short that it would fit its bound."""
    data = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo5" * 83
    keys = " ".join(["ghp_" + "Z9y8X7w6V5" * 4] * 4000)
    for before in (4010, 4020, 4031):
        filled = f"{data} ".ljust(before, "w") + f" {TOKEN} " + "q " * 8000
        key = f"{'u ' * ((before - 3950) // 2)}{TOKEN}{'v ' * 150}"
        inputs: dict[str, Any] = {
            "one text": {"text": filled},
            "beside another": {"a": data * 2 + "w" * (before - 2000), "b": f"{TOKEN} more " * 9},
            "key": {key: "1"},
            "quoted mark": {"text": filled + "... [120 characters left out] ..." + "z" * 2500},
            "name": {"q": "a"},
            "beginning": {"text": f"{keys[: before - 2000]} {TOKEN} {keys}"},
            "end": {"text": f"{keys} {TOKEN} {keys[2000 - before :]}"},
        }[where]
        events = Events()
        events.tool(inputs, inputs.get("text", ""), name=key if where == "name" else "t")
        written = events.end().trace.model_dump_json()
        assert all(TOKEN[at : at + 8] not in written for at in range(4, len(TOKEN) - 8))
        assert "Z9y8X7w6" not in written


# ------------------------------------------------------------------ keys to find a run by


def play(store: TraceStore, redactor: Any = None, **config: Any) -> StoredRun:
    """Play one agent run with this config, and return what the store has of it."""
    return stored(store, last(handler(store=store, redactor=redactor), **config))


def test_a_run_is_found_by_what_its_config_names(url: str) -> None:
    with TraceStore(url) as store:
        for session, thread_, user, tag, name in (
            ("s-1", "t-1", "ann", "beta", "support"), ("s-2", "t-2", "bob", "stable", "sales"),
        ):  # fmt: skip
            metadata = {"session_id": session, "user_id": user, "thread_id": thread_}
            play(store, metadata=metadata, tags=[tag, "both", tag], run_name=name)
        first: dict[str, Any] = {
            "session": "s-1", "thread": "t-1", "user": "ann", "tag": "beta", "name": "support",
        }  # fmt: skip
        for key, value in first.items():
            (found,) = store.runs(**{key: value})
            assert (found.session, found.thread, found.run_name) == ("s-1", "t-1", "support")
            assert found.tags == ["beta", "both"]
            assert store.count(**{key: value}) == 1
            assert store.count(**{key: "another"}) == 0
        assert store.count(**first) == 1
        assert store.count(**first | {"user": "bob"}) == 0
        assert store.count(tag="both") == 2
        (found,) = store.runs(user="ann")
        assert store.runs(user=str(found.user_hash)) == [found]


def test_keys_are_logged_and_never_enter_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kp_langchain")
    keys = {"session_id": "s-4711", "user_id": "jane.4711", "thread_id": "t-4711"}
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        scored = last(watching, metadata=keys, tags=["tag-4711"], run_name="name-4711")
        user = stored(store, scored).user_hash
    assert "4711" not in scored.trace.model_dump_json() + json.dumps(scored.breakdown.to_dict())
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert not [path for path in files if b"jane" in path.read_bytes()]
    record = vars(next(one for one in caplog.records if hasattr(one, "run_name")))
    assert user is not None
    assert [record[name] for name in ("session", "thread_id", "user", "run_name", "tags")] == [
        "s-4711", "t-4711", user, "name-4711", ["tag-4711"],
    ]  # fmt: skip
    assert "jane" not in repr(record)


@pytest.mark.parametrize("kind", ["session", "thread", "user", "tag"])
def test_long_values_that_begin_alike_are_different(kind: Any) -> None:
    values = [f"{'alike' * 3000}{number}{'alike' * 3000}" for number in (1, 2)]
    with TraceStore("kp.db") as store:
        for value in values:
            play(
                store,
                **({"tags": [value]} if kind == "tag" else {"metadata": {f"{kind}_id": value}}),
            )
        assert [store.count(**{kind: value}) for value in values] == [1, 1]


@pytest.mark.parametrize(
    "private",
    [
        "jane@example.com", "whatsapp:+4915112345678", "4915112345678", "+49 151 1234 5678",
        4915112345678, SECRET, "x" * 201, "two\nlines",
    ],
)  # fmt: skip
def test_what_redaction_would_change_is_hashed_and_found_all_the_same(private: Any) -> None:
    with TraceStore("runs.db") as store:
        config: Any = {"metadata": {"session_id": private, "thread_id": private}}
        mail = "jane@example.com"
        kept = play(store, tags=[mail, "plain"], run_name=f"for {mail}", **config)
        kept_keys = repr([kept.session, kept.thread, kept.tags, kept.run_name])
        assert str(private) not in kept_keys
        assert mail not in kept_keys
        assert kept.session != kept.thread  # one cannot be matched with the other
        assert kept.tags[1] == "plain"
        for key, value in (
            ("session", private), ("session", kept.session), ("thread", private),
            ("tag", mail), ("name", f"for {mail}"),
        ):  # fmt: skip
            assert store.runs(**{key: value}) == [kept]
    assert str(private).encode() not in Path("runs.db").read_bytes()


def test_harmless_ids_stay_readable_unless_a_rule_of_the_user_counts() -> None:
    ids = [uuid4(), "01JD8ZQ4XK7B", "chat-17", "desk/7", 42, "2026-q3"]
    with TraceStore("runs.db") as store:
        kept = [play(store, metadata={"session_id": one}).session for one in ids]
        assert kept == [str(one) for one in ids]
        write_user_config('[redaction]\npatterns = { ticket = "TICK-[0-9]{6}" }')
        assert str(play(store, metadata={"session_id": "TICK-123456"}).session).startswith("hash:")
        hide = lambda text: text.replace("project-x", "[gone]")  # noqa: E731
        hidden = play(store, redactor=hide, metadata={"session_id": "project-x"})
        assert str(hidden.session).startswith("hash:")
        assert store.runs(session="project-x") == [hidden]


AN_ID = UUID("1f0e3dad-999d-4a45-8b9a-6fd1b4f2c0de")


class _Raises(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no")


class _Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None), (float("nan"), None), (1.5, None), (True, None), (b"bytes", None),
        ([1], None), (object(), None), ("", None), ("  ", None), (7, "7"), (_Number.SEVEN, "7"),
        (-3, "-3"), (AN_ID, str(AN_ID)), ("a ", "a"), (_Raises("text"), "text"),
    ],
)  # fmt: skip
def test_what_counts_as_an_id(value: object, text: str | None) -> None:
    keys = last(handler(), metadata={"session_id": value}).keys
    assert keys is not None
    assert keys.session == text


def test_framework_tags_are_not_the_users() -> None:
    tags = ["graph:step:1", "seq:step:12", "map:key:a", "branch:default", "langsmith:hidden"]
    keys = last(handler(), tags=[*tags, "branch:main", "mine"]).keys
    assert keys is not None
    assert keys.tags == ("branch:main", "mine")


HOSTILE = st.one_of(
    st.none(), st.floats(), st.binary(max_size=20), st.text(max_size=300), st.booleans(),
    st.integers(), st.just(1 << 5000), st.just("\ud800\x00"), st.just(_Raises("x")),
    st.lists(st.text(max_size=5), max_size=30), st.just(object()),
)  # fmt: skip


@given(
    metadata=st.dictionaries(
        st.sampled_from(["session_id", "thread_id", "user_id", "kp_namespace"]), HOSTILE
    ),
    tags=HOSTILE | st.lists(HOSTILE, max_size=300),
)
def test_hostile_keys_are_bounded_and_harm_nobody(metadata: dict[str, Any], tags: Any) -> None:
    events = Events(metadata=metadata, tags=tags, name="m")
    events.tool()
    keys = events.end().keys
    assert events.watching.stats()["redaction_errors"] == 0
    assert keys is not None
    values = [one for one in (keys.session, keys.thread, keys.user, *keys.tags) if one is not None]
    assert all(len(one) <= 200 and one.isprintable() for one in values)
    assert len(keys.tags) <= 100


# ------------------------------------------------------------------ the secret key


def key_file() -> Path:
    """Return the key by which this user's private keys are hashed; it is made if need be."""
    with TraceStore("other.db") as store:
        play(store, metadata={"user_id": "ann"})
    (file,) = (path for path in Path(os.environ["XDG_DATA_HOME"]).rglob("*") if path.is_file())
    return file


def test_the_key_is_made_once_and_private_also_without_hard_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for home in ("one", "two"):
        monkeypatch.setenv("XDG_DATA_HOME", str(Path(home).absolute()))
        file = key_file()
        key = file.read_bytes()
        assert len(key) == 32
        assert os.name != "posix" or stat.S_IMODE(file.stat().st_mode) == 0o600
        assert key_file().read_bytes() == key
        monkeypatch.setattr(os, "link", refuse)


def test_a_pseudonym_key_is_shared_by_those_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", "one key for the whole fleet")
    with TraceStore("runs.db") as store:
        first = play(store, metadata={"user_id": "ann"})
        monkeypatch.setenv("XDG_DATA_HOME", str(Path("another machine").absolute()))
        assert play(store, metadata={"user_id": "ann"}).user_hash == first.user_hash
        assert store.count(user="ann") == 2
        monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", "the key of somebody else")
        assert store.count(user="ann") == 0


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
@pytest.mark.parametrize("fault", ["read by others", "damaged", "link", "folder"])
def test_without_a_sound_key_what_is_private_is_not_kept(
    fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = key_file().relative_to(os.environ["XDG_DATA_HOME"])
    monkeypatch.setenv("XDG_DATA_HOME", str(Path("new").absolute()))
    path = Path("new", name)
    path.parent.mkdir(parents=True)
    if fault == "folder":
        path.mkdir()
    elif fault == "link":
        Path("elsewhere").write_bytes(b"x" * 32)
        path.symlink_to(Path("elsewhere").absolute())
    else:
        path.write_bytes(b"x" * (32 if fault == "read by others" else 7))
        path.chmod(0o644 if fault == "read by others" else 0o600)
    with TraceStore("runs.db") as store:
        kept = play(store, metadata={"user_id": "ann", "session_id": "a@b.example"}, tags=["x"])
        assert (kept.user_hash, kept.session, kept.tags) == (None, None, ["x"])
        assert store.count(user="ann") == 0
    assert "cannot be hashed, so they are not kept" in caplog.text
