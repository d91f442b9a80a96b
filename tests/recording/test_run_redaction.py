"""A run is redacted as a whole: what one part names as a secret is in no part of what is kept."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from kp_langchain import (
    DomainPolicy,
    KPCallbackHandler,
    ReasoningTrace,
    TraceStore,
    trace_from_messages,
)
from kp_langchain.recording import live_secrets, paused_in_memory
from tests.agents import agent, call, say

STRONG = "Zk7#mQ2v!pLd"
MIXED = "plover83"
WORD = "sunflower"
PIN = "4471"
KEY = "b3f0a9c2d1e84f7796a5c4d3e2f1a0b9"
SEED = "ripple sunset velvet orbit canyon ladder mushroom pelican tornado glimpse harvest zebra"
ASKED = "What is the password of your account?"
DONE = say("Done.")

_outputs: dict[str, str] = {}


def forget_all() -> None:
    live_secrets.conversations.forget_all()
    live_secrets.runs.forget_all()


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    forget_all()
    _outputs.clear()
    yield
    forget_all()


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
        "an output names, a command and the answer use it",
        [KEY],
        task("deploy"),
        [runs("env"), runs(f"./deploy {KEY}"), say(f"I used {KEY[:14]}… and {KEY}.")],
        {"env": f"PATH=/bin\nAPP_TOKEN={KEY}\n"},
    ),
    Run(
        "bare first, named later",
        [STRONG],
        task("deploy"),
        [runs("cat pw"), runs(f"mysql -uroot --password={STRONG}"), DONE],
        {"cat pw": f"{STRONG}\n"},
    ),
    Run(
        "bare first, named later, word",
        [WORD],
        task("deploy"),
        [runs("cat pw"), runs(f"mysql -uroot --password={WORD}"), DONE],
        {"cat pw": f"{WORD}\n"},
    ),
    Run(
        "encoded",
        [STRONG, _base64(f"bob:{STRONG}"), urllib.parse.quote(STRONG)],
        task(f"user bob, password {STRONG}"),
        [runs("a"), runs("b"), DONE],
        {"a": _base64(f"bob:{STRONG}"), "b": f"GET /?p={urllib.parse.quote(STRONG)}"},
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


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_what_a_run_names_is_in_no_part_of_it(run: Run, folder: Path) -> None:
    _outputs.update(run.outputs)
    handler = KPCallbackHandler(policy=DomainPolicy(keep="all"), store=folder / "kp.db")
    has_turns = isinstance(run.messages[0], str)
    graph = agent(*run.answers, tools=TOOLS, checkpointer=InMemorySaver() if has_turns else None)
    config: Any = {"callbacks": [handler], "configurable": {"thread_id": "a thread"}}
    for messages in [[one] for one in run.messages] if has_turns else [run.messages]:
        graph.invoke({"messages": messages}, config)
    scored = handler.last()
    assert scored is not None
    texts = texts_of(scored.trace)
    assert left_in(texts, run.gone) == []
    assert [one for one in run.stays if one not in texts] == []
    assert not scored.withheld
    stored = b"".join(path.read_bytes() for path in folder.glob("kp.db*"))
    assert [one for one in run.gone if len(one) > len(PIN) and one.encode() in stored] == []


@pytest.mark.parametrize("secret", [STRONG, MIXED, WORD, PIN])
@pytest.mark.parametrize(
    ("in_store", "is_elsewhere"), [(True, False), (True, True), (False, False)]
)
def test_a_secret_that_resumes_a_graph_is_in_no_part_of_the_run(
    secret: str, in_store: bool, is_elsewhere: bool, folder: Path
) -> None:
    question = f"What is the {'PIN' if secret == PIN else 'password'}?"
    store = folder / "kp.db" if in_store else None
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "one"}}
    first = KPCallbackHandler(store=store)
    graph = agent(say("", call("pause", "c1", question=question)), tools=TOOLS, checkpointer=saver)
    graph.invoke({"messages": task("log in")}, {**config, "callbacks": [first]})
    first.flush()
    if is_elsewhere:  # as if another process had paused
        paused_in_memory.give_up(first._recorder.owner)
        forget_all()
    second = KPCallbackHandler(store=store)
    graph = agent(types(secret), DONE, tools=TOOLS, checkpointer=saver)
    graph.invoke(Command(resume=secret), {**config, "callbacks": [second]})
    scored = second.last()
    assert scored is not None
    assert scored.trace.task.objective == "log in"
    assert left_in(texts_of(scored.trace), [secret]) == []


@pytest.mark.parametrize("secret", [STRONG, MIXED, WORD])
def test_a_conversation_in_messages_is_redacted_as_a_whole(secret: str) -> None:
    messages = [
        *asked(ASKED, secret),
        types(secret).model_copy(update={"tool_calls": [call("fill", "c1", text=secret)]}),
        ToolMessage(f"typed {secret}", tool_call_id="c1"),
        AIMessage("Done."),
    ]
    assert left_in(texts_of(trace_from_messages(messages)), [secret]) == []


@pytest.mark.parametrize("role", ["assistant", "system", "developer"])
def test_only_a_model_s_question_is_answered(role: str) -> None:
    question, answer = {"role": role, "content": ASKED}, {"role": "user", "content": WORD}
    messages = [*task("Log me in"), question, answer, AIMessage("Done.")]
    assert (WORD in str(texts_of(trace_from_messages(messages)))) is (role != "assistant")


def test_the_paused_half_on_disk_is_redacted_as_a_whole(folder: Path) -> None:
    handler = KPCallbackHandler(store=folder / "kp.db")
    answers = [runs("cat pw"), say("", call("login", username="b", password=STRONG))]
    _outputs["cat pw"] = STRONG
    graph = agent(
        *answers,
        say("", call("pause", question=f"go on with {STRONG}?")),
        tools=TOOLS,
        checkpointer=InMemorySaver(),
    )
    config: Any = {"callbacks": [handler], "configurable": {"thread_id": "one"}}
    graph.invoke({"messages": task(f"log in with {STRONG}")}, config)
    assert handler.flush()
    stored = b"".join(path.read_bytes() for path in folder.glob("kp.db*"))
    assert b"cat pw" in stored
    assert STRONG.encode() not in stored


def test_notes_of_verdicts_are_clean_of_what_the_run_named(folder: Path) -> None:
    handler = KPCallbackHandler(
        store=folder / "kp.db", verifiers=[lambda _: {"success": True, "note": f"used {STRONG}"}]
    )
    graph = agent(say("", call("login", username="b", password=STRONG)), DONE, tools=TOOLS)
    graph.invoke({"messages": task("log in")}, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    for run in (str(scored.run_id), scored.trace.id):
        handler.report_outcome(run, success=False, note=f"no, {STRONG} is wrong")
    assert handler.flush()
    assert handler.store is not None
    notes = [verdict.note for verdict in handler.store.verdicts(scored.trace.id)]
    assert notes == [
        "used [REDACTED:password]",
        "no, [REDACTED:password] is wrong",
        "no, [REDACTED:password] is wrong",
    ]


def test_what_a_note_names_goes_from_the_run(folder: Path) -> None:
    handler = KPCallbackHandler(store=folder / "kp.db")

    @tool
    def judge(q: str) -> str:
        """Judge the run under way."""
        for run_id in list(handler._recorder._open):
            handler.report_outcome(run_id, success=True, note=f"the password is: {STRONG}")
        return "ok"

    graph = agent(types(STRONG), say("", call("judge", q="x")), DONE, tools=(*TOOLS, judge))
    graph.invoke({"messages": task("log in")}, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    assert left_in(texts_of(scored.trace), [STRONG]) == []


def test_the_users_redactor_sees_nothing_that_another_part_names() -> None:
    seen: list[str] = []

    def redactor(text: str) -> str:
        seen.append(text)
        return text

    handler = KPCallbackHandler(store=None, redactor=redactor)
    answers = [types(STRONG), say("", call("login", username="b", password=STRONG)), DONE]
    agent(*answers, tools=TOOLS).invoke({"messages": task("log in")}, {"callbacks": [handler]})
    assert handler.flush()
    assert seen
    assert not any(STRONG in text for text in seen)


def test_a_word_that_is_a_password_stays_the_name_of_domains_and_tools() -> None:
    handler = KPCallbackHandler("production", store=None)
    graph = agent(say("", call("production", password="production")), DONE, tools=(deploy,))  # noqa: S106
    graph.invoke({"messages": task("deploy")}, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    assert scored.trace.metadata.task_domain == "production"
    assert scored.trace.steps[0].tool is not None
    assert scored.trace.steps[0].tool.name == "production"
    assert scored.trace.steps[1].content == "[REDACTED:password]"


def test_a_private_run_keeps_identifiers_alone() -> None:
    policy = DomainPolicy(privacy_level="private", visibility="private")
    handler = KPCallbackHandler(store=None, policy=policy)
    answers = [types(STRONG), say("", call("login", username="b", password=STRONG)), DONE]
    messages = task("log in for bob@example.org")
    agent(*answers, tools=TOOLS).invoke({"messages": messages}, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    texts = texts_of(scored.trace)
    assert "bob@example.org" in texts
    assert STRONG not in texts


def test_only_the_same_conversation_is_cleaned_of_what_it_named() -> None:
    def objective(text: str, metadata: dict[str, str]) -> str:
        handler = KPCallbackHandler(store=None)
        config: Any = {"callbacks": [handler], "metadata": metadata}
        agent(DONE).invoke({"messages": task(text)}, config)
        scored = handler.last()
        assert scored is not None
        return scored.trace.task.objective

    objective(f"my password is {STRONG}", {"session_id": "one"})
    assert objective(f"type {STRONG}", {"session_id": "one"}) == "type [REDACTED:password]"
    assert objective(f"type {STRONG}", {"session_id": "two"}) == f"type {STRONG}"


def test_what_is_known_of_conversations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kp_langchain.redaction.repeated import Secrets

    known = live_secrets.LiveSecrets()

    def remember(key: str, secret: str) -> None:
        secrets = Secrets()
        secrets.note("password", secret)
        known.remember([("thread", key), ("session", key)], secrets)

    def is_known(key: str) -> bool:
        secrets = Secrets()
        known.recall([("thread", key)], secrets)
        return bool(secrets)

    monkeypatch.setattr(live_secrets, "MOST_KNOWN", 4)
    for key in ("one", "two", "three"):
        remember(key, STRONG + key)
    assert [is_known(key) for key in ("one", "two", "three")] == [False, True, True]
    monkeypatch.setattr(live_secrets, "MOST_CHARS", 3 * len(STRONG))
    for _ in range(9):
        remember("four", STRONG)
    assert [is_known(key) for key in ("two", "three", "four")] == [False, False, True]


def test_a_long_conversation_forgets_what_it_named_first(caplog: pytest.LogCaptureFixture) -> None:
    def objective(text: str) -> str:
        handler = KPCallbackHandler(store=None)
        config: Any = {"callbacks": [handler], "metadata": {"session_id": "main"}}
        agent(DONE).invoke({"messages": task(text)}, config)
        scored = handler.last()
        assert scored is not None
        return scored.trace.task.objective

    first = [f"{STRONG}{number:03}a" for number in range(150)]
    objective("\n".join(f"password: {secret}" for secret in first))
    more = [f"{STRONG}{number:03}b" for number in range(150)]
    objective("\n".join(f"password: {secret}" for secret in more))
    assert objective(f"type {more[-1]}") == "type [REDACTED:password]"
    assert "names more secrets than" not in caplog.text
    many = "\n".join(f"password: {STRONG}{number:03}c" for number in range(201))
    assert STRONG not in objective(many)
    assert "names more secrets than" in caplog.text


def test_namespaces_share_no_conversation() -> None:
    def objective(text: str, namespace: str) -> str:
        handler = KPCallbackHandler(store=None)
        metadata = {"thread_id": "1", "kp_namespace": namespace}
        agent(DONE).invoke({"messages": task(text)}, {"callbacks": [handler], "metadata": metadata})
        scored = handler.last()
        assert scored is not None
        return scored.trace.task.objective

    objective(f"my password is {STRONG}", "one")
    assert objective(f"type {STRONG}", "one") == "type [REDACTED:password]"
    assert objective(f"type {STRONG}", "two") == f"type {STRONG}"


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
    forget_all()
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


def test_a_stored_trace_is_what_the_handler_returned(folder: Path) -> None:
    handler = KPCallbackHandler(policy=DomainPolicy(keep="all"), store=folder / "kp.db")
    answers = [types(STRONG), say("", call("login", username="b", password=STRONG)), DONE]
    agent(*answers, tools=TOOLS).invoke({"messages": task("log in")}, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    stored = TraceStore(f"sqlite:///{folder / 'kp.db'}").get(scored.trace.id)
    assert stored is not None
    assert stored.trace == scored.trace
