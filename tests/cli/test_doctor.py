"""`kp-langchain doctor`: what it says, and whether its exit status is right."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kp_langchain
from kp_langchain import Registry, TraceStore
from kp_langchain.calibration.fitting import fit
from kp_langchain.cli.doctor import EXTRAS
from kp_langchain.store.registry_units import Standing
from tests.agents import ASK, handler, searching
from tests.cli.made_runs import KEY, fill, recorded
from tests.commands import ROOT, Done, cli
from tests.loopback_registry import LoopbackRegistry
from tests.loopback_tools import unheard_port

NO_FOLDER = "/no/such/folder"


def row(done: Done, topic: str) -> str:
    """Return what it says about `topic`, in one line."""
    lines = iter(done.stdout.splitlines())
    said = next(line for line in lines if line.startswith(topic)).removeprefix(topic).split()
    for line in lines:
        if not line.startswith(" "):
            break
        said += line.split()
    return " ".join(said)


@pytest.fixture
def doctor(without_model: None) -> Callable[..., Done]:
    """The command in an installation without the embedding model, which is nothing broken."""

    def run(status: int = 0, *words: str, **environment: str) -> Done:
        done = cli("doctor", *words, columns=300, **environment)
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        assert ("BROKEN" in done.stdout) == (status == 1)
        return done

    return run


def test_all_is_well(onnx_folder: Path) -> None:
    done = cli("doctor", KP_EMBEDDING_MODEL=str(onnx_folder), columns=200)
    assert done.returncode == 0, done
    assert row(done, "kp-langchain") == kp_langchain.__version__
    assert row(done, "langchain-core") == importlib.metadata.version("langchain-core")
    assert f"no file {Path('kp.toml').absolute()}" in row(done, "settings")
    assert "KP_EMBEDDING_MODEL" in row(done, "settings")
    assert "none configured" in row(done, "registry")
    assert row(done, "tools") == "no scores are sent"
    embedding = f"{onnx_folder}/model.onnx on fastembed 384 dimensions"
    assert row(done, "embedding").startswith(embedding)
    domains = "built in: code, customer_service, default, finance, medical"
    assert row(done, "domains") == domains
    assert row(done, "[embeddings]") == "installed"
    assert "does not exist yet" in row(done, "store")
    assert "BROKEN" not in done.stdout
    lines = cli("doctor", "--json", KP_EMBEDDING_MODEL=str(onnx_folder)).stdout.splitlines()
    checks = {one["topic"]: one for one in map(json.loads, lines)}
    version = {"topic": "kp-langchain", "text": kp_langchain.__version__, "is_broken": False}
    assert checks["kp-langchain"] == version
    assert not Path(os.environ["XDG_DATA_HOME"]).exists()


def test_what_is_missing_comes_with_the_line_that_installs_it(doctor: Callable[..., Done]) -> None:
    done = doctor()
    assert "novelty is 0.5" in row(done, "embedding")
    for extra in ("sentence-transformers", "torch", "embeddings"):
        assert row(done, f"[{extra}]") == f"missing; pip install 'kp-langchain[{extra}]'"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"test", "bench", "dev"} <= set(EXTRAS)


# Settings.


def test_what_each_file_sets_and_what_is_ignored(doctor: Callable[..., Done]) -> None:
    own = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    own.parent.mkdir(parents=True)
    own.write_text("max_queue = 5\n")
    Path("kp.toml").write_text(
        "registry_url = 'https://evil.example.org'\n[domains.finnance]\nthreshold = 0.4\n"
        "[domains.legal]\nkeep = 'all'\n"
    )
    hidden = "never to be shown"
    done = doctor(
        KP_DATABSE_URL=hidden, KP_TELEMETRY=hidden, KP_MAX_QUEUE="", KP_DOMAINS__MEDIAL__KEEP="all"
    )
    settings = row(done, "settings")
    folder = Path().absolute()
    for part in (
        f"{folder}/kp.toml (in the working folder) sets domains.finnance.threshold",
        "ignored: registry_url",
        f"{own} (your own) sets max_queue",
        "environment: KP_DOMAINS__MEDIAL__KEEP, KP_EXIT_TIMEOUT_S",
        "KP_DATABSE_URL is not a setting; did you mean KP_DATABASE_URL?",
        "KP_TELEMETRY is not a setting",
    ):  # fmt: skip
        assert part in settings, part
    domains = row(done, "domains")
    assert (
        "set: finnance; it is not built in: did you mean finance? set: legal set: medial" in domains
    )
    assert "KP_MAX_QUEUE" not in settings
    assert hidden not in done.stdout + done.stderr
    assert "none configured" in row(done, "registry")


BROKEN: list[tuple[str, dict[str, str], str, str]] = [
    ("databas_url = 'x'\n", {}, "", "did you mean database_url"),
    ("", {"KP_EMBEDDING_MODEL": NO_FOLDER}, "embedding", NO_FOLDER),
    ("", {"KP_DATABASE_URL": "file/a/new.db"}, "store", "/file/a/new.db cannot be created: "),
    ("", {"KP_DATABASE_URL": "file"}, "store", "the file is damaged or no SQLite database"),
    ("", {"KP_REGISTRY_URL": "http://registry.example.org"}, "registry", "write https://"),
]


@pytest.mark.parametrize(("text", "environment", "topic", "message"), BROKEN)
def test_what_cannot_be_used_is_broken_and_the_rest_is_looked_at(
    doctor: Callable[..., Done], text: str, environment: dict[str, str], topic: str, message: str
) -> None:
    Path("file").write_bytes(b"this is no database, and long enough to be seen as none" * 30)
    Path("kp.toml").write_text(text)
    done = doctor(1, **environment)
    assert message in (row(done, topic) if topic else done.stdout)
    assert "BROKEN" in (row(done, topic) if topic else done.stdout)
    assert "[postgres]" in done.stdout


# The store and its models.


def test_the_store_that_is_there_is_opened(doctor: Callable[..., Done]) -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
        runs = f"{Path('runs.db').absolute()}, 3 runs"
        assert row(doctor(KP_DATABASE_URL="runs.db"), "store") == runs
        store.journal.record([recorded()])
    waiting = "3 runs; 1 more wait to be scored"
    assert waiting in row(doctor(0, "--database", "runs.db"), "store")
    assert "examples " not in doctor(0, "--database", "runs.db").stdout
    store.effects.decide("law\x1b[2J", shows=False)
    stopped = row(doctor(0, "--database", "runs.db"), "examples")
    assert stopped.startswith("law\ufffd[2J: a person stopped examples in this domain")
    assert "does not exist yet" in row(doctor(0, "--database", "new.db"), "store")
    assert not Path("new.db").exists()


def test_the_models_in_force_are_shown_with_what_speaks_against_them(
    doctor: Callable[..., Done],
) -> None:
    pytest.importorskip("sklearn")
    environment = {"KP_DATABASE_URL": "runs.db"}
    with TraceStore("runs.db") as store:
        fill(store, "finance", runs=30, seed=2)
        model = fit("finance", store.models.labelled("finance")).model
        assert model is not None
        assert "model " not in doctor(**environment).stdout
        store.models.install(model)
        store.models.install(replace(model, domain="old\x1b[2J", features_version=0))
        done = doctor(**environment)
        assert "\x1b" not in done.stdout
        for part in (
            f", {model.source}; in force",
            "outdated and not used; fit it again: kp-langchain calibrate --domain",
        ):  # fmt: skip
            assert part in " ".join(done.stdout.split()), part
        fill(store, "finance", runs=60, seed=7)
        for run in store.runs(limit=60):  # the newest, which came after the model
            store.report_outcome(run.trace_id, success=not run.success)
    said = " ".join(doctor(**environment).stdout.split())
    assert "it no longer holds: promised Brier score" in said
    assert "fit it again: kp-langchain calibrate --domain finance" in said
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("update models set body = '{}'")
    assert row(doctor(1, **environment), "model").startswith("BROKEN: the model of domain")


# The registry, which is asked once at most.


@pytest.fixture
def ask(doctor: Callable[..., Done]) -> Callable[..., tuple[str, str]]:
    """Asks about a registry; returns what it says of it and of the agent."""

    def run(server: LoopbackRegistry, status: int = 0, **settings: str) -> tuple[str, str]:
        before = len(server.requests)
        done = doctor(status, **{"KP_REGISTRY_URL": server.url, **settings})
        assert len(server.requests) - before <= 1
        assert KEY not in done.stdout
        agent = row(done, "agent") if "\nagent " in done.stdout else ""
        return row(done, "registry"), agent

    return run


def test_a_registry_is_asked_once_whether_it_knows_the_key(
    ask: Callable[..., tuple[str, str]],
) -> None:
    with LoopbackRegistry(keys={KEY}, read_limit=300) as server:
        registry, agent = ask(server, KP_API_KEY=KEY, KP_AGENT_ID="desk")
        assert registry == f"{server.url}, with a key, which it knows"
        assert agent == "kp:agent:desk; the agent of the key is not known here"
        registry, _ = ask(server, 1, KP_API_KEY="kp_wrong", KP_AGENT_ID="desk")
        assert "it does not know the key: it allows 60 requests a minute" in registry
        assert "kp-langchain registry register" in registry
        registry, _ = ask(server, KP_API_KEY="")
        assert registry == f"{server.url}, without a key; get one: kp-langchain registry register"
        assert len(server.requests) == 2
        cli("doctor", KP_REGISTRY_URL=server.url, KP_API_KEY=KEY, KP_DISABLED="1")
        assert len(server.requests) == 2


def test_the_agent_in_force_is_held_against_that_of_the_key(
    ask: Callable[..., tuple[str, str]],
) -> None:
    with LoopbackRegistry(keys=set()) as server:
        cli("registry", "register", "--agent-id", "desk", KP_REGISTRY_URL=server.url)
        assert ask(server)[1] == "kp:agent:desk, the agent of the key"
        _, agent = ask(server, 1, KP_AGENT_ID="other")
        assert "kp:agent:other, but the key is of kp:agent:desk" in agent
        assert "nothing that is sent can be withdrawn" in agent
        _, agent = ask(server, 1, KP_API_KEY=KEY)
        assert "traces carry none; the agent of the key is not known here" in agent
        _, agent = ask(server, 1, KP_AGENT_ID="ada@example.org")
        assert ("would be redacted" in agent, "ada" in agent) == (True, False)


def test_a_registry_that_does_not_answer_as_one(
    ask: Callable[..., tuple[str, str]], doctor: Callable[..., Done]
) -> None:
    settings: dict[str, Any] = {"KP_API_KEY": KEY, "KP_AGENT_ID": "desk"}
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    with LoopbackRegistry(misbehave=lambda *_: page) as server:
        assert "does not seem to be the URL of a registry" in ask(server, 1, **settings)[0]
    with unheard_port() as port:  # which is nothing broken
        done = doctor(KP_REGISTRY_URL=f"http://127.0.0.1:{port}", **settings)
    assert "it cannot be asked now: no connection" in row(done, "registry")
    now = datetime.now(UTC)
    with LoopbackRegistry() as server, TraceStore("runs.db") as store:
        key_id = Registry(server.url, api_key=KEY).key_id
        store.outbox.save(
            Standing(
                server.url, key_id, now + timedelta(hours=1), "429",
                throttled_at=(now.isoformat(), now.isoformat()),
            )
        )  # fmt: skip
        registry, _ = ask(server, KP_DATABASE_URL="runs.db", **settings)
        assert "it wants a pause of" in registry
        assert server.requests == []
        shown = {"KP_REGISTRY_URL": server.url, "KP_DOMAINS__FINANCE__VISIBILITY": "org"}
        assert "shows such units to everybody" in row(doctor(**shown, **settings), "visibility")
