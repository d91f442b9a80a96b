"""Keys to find a run by: from its config into the store and the log, and the search for them."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from kp_langchain import DomainPolicy, KPCallbackHandler, ScoredTrace, Settings, TraceStore
from kp_langchain.errors import ConfigError
from kp_langchain.recording.draft import Draft
from kp_langchain.run_keys import KEY_CHARS, MOST_TAGS, RunKeys, RunKeySources, collect, id_text
from kp_langchain.secret_key import secret_key, secret_key_file
from kp_langchain.store.stored_run import StoredRun
from tests.agents import ASK, agent, call, handler, run, say, searching
from tests.commands import write_trusted

HASHED = r"hash:[0-9a-f]{32}"


def play(store: TraceStore, **config: Any) -> StoredRun:
    """Play one agent run with this config, and return what the store has of it."""
    options = {name: config.pop(name) for name in ("policy", "redactor") if name in config}
    watching = handler(store=store, **options)
    searching().invoke(ASK, {"callbacks": [watching], **config})
    assert watching.flush(120)
    (stored,) = store.runs(limit=1)
    return stored


def test_a_run_is_found_by_what_its_config_names(url: str) -> None:
    with TraceStore(url) as store:
        talking = agent(say("42"), say("43"), checkpointer=InMemorySaver())
        watching = handler(store=store)
        for session, thread, user, tag, name in (
            ("s-1", "t-1", "ann", "beta", "support"),
            ("s-2", "t-2", "bob", "stable", "sales"),
        ):
            talking.invoke(
                ASK,
                {
                    "callbacks": [watching],
                    "configurable": {"thread_id": thread},
                    "metadata": {"session_id": session, "user_id": user},
                    "tags": [tag, "both"],
                    "run_name": name,
                },
            )
        assert watching.flush(120)
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
        assert store.count(session="s-1", domain="finance") == 0
        assert [trace.id for trace in store.traces(tag="both")] == []
        (found,) = store.runs(user="ann")
        assert store.runs(user=str(found.user_hash)) == [found]


@pytest.mark.parametrize(
    ("key", "kind"),
    [("session_id", "session"), ("thread_id", "thread"), ("user_id", "user"), ("tags", "tag")],
)
def test_long_values_that_begin_alike_are_different(key: str, kind: Any, tmp_path: Path) -> None:
    values = [f"{'alike' * 30_000}{number}{'alike' * 3000}" for number in (1, 2)]
    with TraceStore(tmp_path / "kp.db") as store:
        for value in values:
            play(store, **({"tags": [value]} if key == "tags" else {"metadata": {key: value}}))
        assert [store.count(**{kind: value}) for value in values] == [1, 1]


def test_long_threads_that_begin_and_end_alike_are_different() -> None:
    reason = "this release of langgraph does not tell of breakpoints"
    pytest.importorskip("langgraph.callbacks", reason=reason)
    searching = agent(
        say("the first", call("search", q="a")),
        say("the second", call("search", q="b")),
        say("42"),
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    watching = handler()
    configs = [
        {"callbacks": [watching], "configurable": {"thread_id": f"{'a' * 6000}{n}{'z' * 6000}"}}
        for n in (1, 2)
    ]
    for config in configs:
        searching.invoke(ASK, config)
    searching.invoke(None, configs[0])
    scored = watching.last(600)
    assert scored is not None
    thoughts = [step.content for step in scored.trace.steps if step.type == "thought"]
    assert thoughts == ["the first", "42"]


def test_each_key_has_an_index(url: str) -> None:
    with TraceStore(url) as store:
        store.count()
        engine = store.database.open().engine
        indexed = {index["column_names"][0] for index in sa.inspect(engine).get_indexes("runs")}
        assert {"session", "thread", "user_hash", "run_name"} <= indexed
        assert sa.inspect(engine).get_pk_constraint("run_tags")["constrained_columns"][0] == "tag"


def test_a_user_stands_nowhere_in_clear(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kp_langchain")
    with TraceStore("runs.db") as store:
        stored = play(store, metadata={"user_id": "jane.roe.4711", "session_id": "s"})
        assert stored.user_hash is not None
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert Path("runs.db") in files
    assert not [path for path in files if b"jane.roe" in path.read_bytes()]
    (record,) = (one for one in caplog.records if getattr(one, "event", "") == "kp.trace_scored")
    assert record.user == stored.user_hash
    assert "jane.roe" not in repr(vars(record))


@pytest.mark.parametrize(
    "private",
    [
        "jane@example.com", "whatsapp:+4915112345678", "4915112345678", "+49 151 1234 5678",
        4915112345678, "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5, "x" * (KEY_CHARS + 1),
        "two\nlines",
    ],
)  # fmt: skip
def test_what_redaction_would_change_is_hashed_and_found_all_the_same(private: Any) -> None:
    with TraceStore("runs.db") as store:
        config = {"metadata": {"session_id": private, "thread_id": private}}
        stored = play(store, **config)
        assert str(private) not in f"{stored.session} {stored.thread}"
        assert stored.session != stored.thread  # one cannot be matched with the other
        for key, value in (("session", stored.session), ("thread", stored.thread)):
            assert store.runs(**{key: private}) == store.runs(**{key: value}) == [stored]
    assert str(private).encode() not in Path("runs.db").read_bytes()


def test_names_and_tags_are_no_way_around_redaction() -> None:
    mail = "jane@example.com"
    with TraceStore("runs.db") as store:
        stored = play(store, tags=[mail, "plain"], run_name=f"for {mail}")
        assert stored.tags[1] == "plain"
        assert mail not in repr(stored)
        assert store.runs(tag=mail) == store.runs(name=f"for {mail}") == [stored]


def test_harmless_ids_stay_readable() -> None:
    ids = [uuid4(), "01JD8ZQ4XK7B", "chat-17", "desk/7", 42, "2026-q3"]
    with TraceStore("runs.db") as store:
        assert [play(store, metadata={"session_id": one}).session for one in ids] == [
            str(one) for one in ids
        ]


def test_rules_and_redactor_of_the_user_count() -> None:
    write_trusted('[redaction]\npatterns = { ticket = "TICK-[0-9]{6}" }')
    with TraceStore("runs.db") as store:
        assert str(play(store, metadata={"session_id": "TICK-123456"}).session).startswith("hash:")
        hidden = play(
            store,
            metadata={"session_id": "project-x"},
            redactor=lambda text: text.replace("project-x", "[gone]"),
        )
        assert str(hidden.session).startswith("hash:")
        assert store.runs(session="project-x") == [hidden]


def test_the_keys_never_enter_the_trace() -> None:
    keys = {"session_id": "s-4711", "user_id": "u-4711", "thread_id": "t-4711"}
    scored: list[ScoredTrace] = []
    watching = handler(
        on_scored=scored.append, policy=DomainPolicy(visibility="org", threshold=0.0)
    )
    config: Any = {"metadata": keys, "tags": ["tag-4711"], "run_name": "name-4711"}
    searching().invoke(ASK, {"callbacks": [watching], **config})
    assert watching.flush(120)
    assert "4711" not in scored[0].trace.model_dump_json()
    assert "4711" not in json.dumps(scored[0].breakdown.to_dict())
    assert scored[0].keys is not None
    assert scored[0].keys.session == "s-4711"


def test_the_log_has_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kp_langchain")
    with TraceStore("runs.db") as store:
        play(
            store,
            metadata={"session_id": "s", "thread_id": "t"},
            tags=["b", "a", "b"],
            run_name="support",
        )
    (record,) = (one for one in caplog.records if getattr(one, "event", "") == "kp.trace_scored")
    found = {name: getattr(record, name) for name in ("session", "thread_id", "user", "run_name")}
    assert found == {"session": "s", "thread_id": "t", "user": None, "run_name": "support"}
    assert record.tags == ["b", "a"]


def test_the_settings_say_which_keys_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = {
        "metadata": {"session_id": "s", "chat": "c", "thread_id": "t", "user_id": "u"},
        "tags": ["beta"],
        "run_name": "support",
    }
    write_trusted('[run_keys]\nsession = ["missing", "chat"]\nthread = []\ntags = false')
    with TraceStore("runs.db") as store:
        stored = play(store, **config)
        assert (stored.session, stored.thread, stored.tags) == ("c", None, [])
        assert stored.run_name == "support"
        assert stored.user_hash is not None
        Path("kp.toml").unlink()
        for key in ("SESSION", "THREAD", "USER"):
            monkeypatch.setenv(f"KP_RUN_KEYS__{key}", "[]")
        monkeypatch.setenv("KP_RUN_KEYS__TAGS", "false")
        monkeypatch.setenv("KP_RUN_KEYS__NAME", "0")
        stored = play(store, **config)
        nothing = (stored.session, stored.thread, stored.user_hash, stored.run_name, stored.tags)
        assert nothing == (None, None, None, None, [])


def test_a_folder_does_not_choose_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    Path("kp.toml").write_text('[run_keys]\nsession = ["api_token"]\n')
    assert Settings().run_keys == RunKeySources()
    assert "are ignored: run_keys.session; " in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sesion = []", "run_keys.sesion = []: unknown key; did you mean session?"),
        ("session = 3", "run_keys.session = 3: expected a list of metadata keys"),
        ("tags = 'some'", "run_keys.tags = 'some': expected true or false"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(line: str, message: str) -> None:
    write_trusted(f"[run_keys]\n{line}")
    with pytest.raises(ConfigError) as told:
        Settings()
    assert message in str(told.value)


def test_framework_tags_are_not_the_users() -> None:
    tags = ["graph:step:1", "seq:step:12", "map:key:a", "branch:default", "langsmith:hidden"]
    scored = run(searching(), None)
    assert scored.keys is not None
    assert scored.keys.tags == ()
    keys = collect(RunKeySources(), {}, [*tags, "branch:main", "mine"], "", lambda _, text: text)
    assert keys.tags == ("branch:main", "mine")


class _Raises(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no")


class _Exits:
    @property
    def __class__(self) -> type:
        raise SystemExit

    @__class__.setter
    def __class__(self, kind: type) -> None: ...


class _Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (float("nan"), ""), (1.5, ""), (True, ""), (b"bytes", ""), ([1], ""),
        (object(), ""), ("", ""), ("  ", ""), (7, "7"), (_Number.SEVEN, "7"), (-3, "-3"),
        (UUID(int=5), str(UUID(int=5))), (_Raises("text"), "text"), ("a ", "a"),
        (1 << 600, f"{1 << 600:x}"),
    ],
)  # fmt: skip
def test_what_counts_as_an_id(value: object, text: str) -> None:
    assert id_text(value) == text


def test_an_id_that_ends_the_interpreter_is_none() -> None:
    assert id_text(_Exits()) == ""


@pytest.mark.parametrize("value", ["", b"a", True, 1.5, [1], object(), _Exits])
def test_a_namespace_that_is_no_id_is_the_runs_own(value: object) -> None:
    metadata = [{"kp_namespace": value() if value is _Exits else value}] * 2
    first, second = (
        collect(RunKeySources(), one, None, "", lambda _, text: text).namespace for one in metadata
    )
    assert first is not None
    assert second is not None
    assert re.fullmatch("unknown:[0-9a-f]{32}", first)
    assert first != second


HOSTILE = st.one_of(
    st.none(), st.floats(), st.binary(max_size=20), st.text(max_size=300), st.booleans(),
    st.integers(), st.just(1 << 5000), st.just("\ud800\x00"), st.just(_Raises("x")),
    st.lists(st.text(max_size=5), max_size=30), st.just(object()),
)  # fmt: skip


@given(
    metadata=st.dictionaries(
        st.sampled_from(["session_id", "thread_id", "user_id", "x"]), HOSTILE, max_size=4
    ),
    tags=HOSTILE | st.lists(HOSTILE, max_size=300),
)
def test_hostile_keys_are_bounded_and_harm_nobody(metadata: dict[str, Any], tags: Any) -> None:
    scored: list[ScoredTrace] = []
    watching = KPCallbackHandler(store=None, on_scored=scored.append)
    run_id = uuid4()
    watching.on_chat_model_start({}, [[]], run_id=run_id, metadata=metadata, tags=tags, name="m")
    watching.on_llm_error(ValueError("x"), run_id=run_id)
    assert watching.flush(120)
    stats = watching.stats()
    assert (stats["scored"], stats["callback_errors"], stats["redaction_errors"]) == (1, 0, 0)
    keys = scored[0].keys
    assert keys is not None
    values = [one for one in (keys.session, keys.thread, keys.user, *keys.tags) if one is not None]
    assert all(len(one) <= KEY_CHARS and one.isprintable() for one in values)
    assert len(keys.tags) <= MOST_TAGS
    assert RunKeys.from_dict(json.loads(json.dumps(keys.to_dict()))) == keys


def test_a_draft_keeps_the_keys() -> None:
    keys = RunKeys("s", "t", "hash:" + "0" * 32, "n", ("a", "b"))
    scored = run(searching())
    draft = Draft(scored.trace, scored.run_id, DomainPolicy(), looked_successful=True, keys=keys)
    written = json.loads(json.dumps(draft.to_dict(), default=str))
    assert Draft.from_dict(written).keys == keys
    del written["keys"]  # as a version without them wrote it
    assert Draft.from_dict(written).keys is None


# ------------------------------------------------------------------ the secret key


def test_the_key_is_made_once_and_private() -> None:
    assert not secret_key_file().exists()
    key = secret_key()
    assert secret_key_file().read_bytes() == key
    assert len(key) == 32
    if os.name == "posix":
        assert stat.S_IMODE(secret_key_file().stat().st_mode) == 0o600
    assert list(secret_key_file().parent.iterdir()) == [secret_key_file()]


def test_the_key_is_made_where_the_file_system_has_no_hard_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    key = secret_key()
    assert secret_key_file().read_bytes() == key
    assert list(secret_key_file().parent.iterdir()) == [secret_key_file()]


def test_a_pseudonym_key_is_shared_by_those_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", "one key for the whole fleet")
    with TraceStore("runs.db") as store:
        first = play(store, metadata={"user_id": "ann"})
        monkeypatch.setenv("XDG_DATA_HOME", str(Path("another machine").absolute()))
        second = play(store, metadata={"user_id": "ann"})
        assert first.user_hash == second.user_hash
        assert store.count(user="ann") == 2
        monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", "the key of somebody else")
        assert store.count(user="ann") == 0


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
@pytest.mark.parametrize("fault", ["read by others", "damaged", "link", "folder"])
def test_without_a_sound_key_what_is_private_is_not_kept(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = secret_key_file()
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
        stored = play(store, metadata={"user_id": "ann", "session_id": "a@b.example"}, tags=["x"])
        assert (stored.user_hash, stored.session, stored.tags) == (None, None, ["x"])
        assert store.count(user="ann") == 0
    assert "cannot be hashed, so they are not kept" in caplog.text
