"""`kp-langchain doctor`: what it says, and whether its exit status is right."""

from __future__ import annotations

import importlib.metadata
import os
import sqlite3
import sys
import tomllib
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import kp_langchain
from kp_langchain import Registry, TraceStore
from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.surface import SurfaceFeature
from kp_langchain.cli.commands.doctor import EXTRAS
from kp_langchain.store import Standing
from tests.agents import ASK, handler, searching
from tests.cli.judged import fill
from tests.commands import ROOT, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY
from tests.trusting import write_trusted
from tests.unheard import unheard_port

HIDDEN = "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"


@pytest.fixture
def onnx(onnx_folder: Path) -> str:
    """A folder with all-MiniLM-L6-v2 that loads fast."""
    return str(onnx_folder)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs the model is imported once, and not in a process of its own for each command."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)


def row(out: str, topic: str) -> str:
    """What it says about `topic`, in one line."""
    lines = iter(out.splitlines())
    said = next(line for line in lines if line.startswith(topic)).removeprefix(topic).split()
    for line in lines:
        if not line.startswith(" "):
            break
        said += line.split()
    return " ".join(said)


def test_all_is_well(onnx: str) -> None:
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, columns=200)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert row(out, "kp-langchain") == kp_langchain.__version__
    assert row(out, "langchain-core") == importlib.metadata.version("langchain-core")
    assert f"no file {Path('kp.toml').absolute()}" in row(out, "settings")
    assert "KP_EMBEDDING_MODEL" in row(out, "settings")
    assert "none configured" in row(out, "registry")
    assert row(out, "embedding").startswith(f"{onnx}/model.onnx on fastembed 384 dimensions")
    languages = row(out, "languages")
    assert languages.startswith("reads English, Spanish, German cannot read Russian (")
    assert "KP_EMBEDDING_MODEL=sentence-transformers/paraphrase-multilingual" in languages
    assert row(out, "[embeddings]") == "installed"
    assert "BROKEN" not in out


def test_what_scoring_goes_by_is_shown(onnx: str) -> None:
    said = row(cli("doctor", KP_EMBEDDING_MODEL=onnx, columns=200).stdout, "scoring")
    assert said.startswith("remembers the last 1,000 traces, until newer ones take their place")
    assert "complexity counts all steps; 100 ms for one run" in said
    Path("kp.toml").write_text("novelty_memory = 50\nnovelty_ttl_s = 86400\n")
    more = {"KP_STEP_CAP": "20", "KP_NOVELTY_SCOPE": "domain"}
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, columns=200, **more)
    said = row(done.stdout, "scoring")
    assert said.startswith("remembers the last 50 traces of each domain, each for 86400 s")
    assert "complexity counts at most 20 steps" in said


def learned(store: TraceStore, **options: int) -> ConfidenceModel:
    """The model of a domain whose runs and verdicts are added here."""
    fill(store, "finance", **options)
    model = fit("finance", store.models.labelled("finance")).model
    assert model is not None
    return model


def test_the_models_in_force_are_shown_with_what_speaks_against_them(onnx: str) -> None:
    pytest.importorskip("sklearn")
    assert "model " not in cli("doctor", KP_EMBEDDING_MODEL=onnx, columns=200).stdout
    with TraceStore("runs.db") as store:
        model = learned(store, runs=30, seed=2)
        store.models.install(replace(model, surface=SurfaceFeature("steps", 0.9, model.auc)))
        store.models.install(replace(model, domain="old\x1b[2J", features_version=0))
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_DATABASE_URL="runs.db", columns=200)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    (finance,) = (n for n, line in enumerate(lines) if "finance: version 1" in line)
    assert lines[finance].split(maxsplit=1) == ["model", f"finance: version 1, {model.source}"]
    assert "provisional" in model.source
    assert lines[finance + 1].strip().startswith("warning: one figure alone, steps, reaches AUC")
    assert "\x1b" not in done.stdout
    assert "outdated and not used; fit it again: kp-langchain calibrate --domain" in done.stdout


def test_a_model_that_no_longer_holds_is_named(onnx: str) -> None:
    pytest.importorskip("sklearn")
    with TraceStore("runs.db") as store:
        model = learned(store)
        store.models.install(model)
        fill(store, "finance", runs=60, seed=7)
        for run in store.models.labelled("finance"):
            if run.trace_id not in model.held_out:
                store.report_outcome(run.trace_id, success=not run.success)
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_DATABASE_URL="runs.db", columns=200)
    assert done.returncode == 0
    said = row(done.stdout, "model")
    assert "it no longer holds: promised Brier score" in said
    assert said.endswith("fit it again: kp-langchain calibrate --domain finance")


def test_a_model_that_cannot_be_read_is_broken(onnx: str) -> None:
    pytest.importorskip("sklearn")
    with TraceStore("runs.db") as store:
        model = learned(store)
        store.models.install(model)
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("update models set body = '{}'")
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_DATABASE_URL="runs.db", columns=200)
    assert done.returncode == 1
    assert row(done.stdout, "model").startswith("BROKEN: version 1 of the model of domain")


def test_no_database_is_made(onnx: str) -> None:
    for words in (["doctor"], ["doctor", "--database", "new.db"]):
        done = cli(*words, KP_EMBEDDING_MODEL=onnx)
        assert done.returncode == 0, done.stdout
        assert "does not exist yet" in row(done.stdout, "store")
    assert [path for path in Path().rglob("*") if path.is_file()] == []
    assert not Path(os.environ["XDG_DATA_HOME"]).exists()


def test_a_database_that_cannot_be_made_is_broken(onnx: str) -> None:
    Path("file").touch()
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_DATABASE_URL="file/a/new.db", columns=300)
    assert done.returncode == 1
    file = Path("file").absolute()
    said = f"BROKEN: {file}/a/new.db cannot be created: {file} is not a folder"
    assert row(done.stdout, "store") == said


def test_the_store_that_is_there_is_opened(onnx: str) -> None:
    with TraceStore("runs.db") as store:
        for _ in range(3):
            watching = handler(store=store)
            searching().invoke(ASK, {"callbacks": [watching]})
            assert watching.flush()
    write_trusted('database_url = "runs.db"\n')
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, columns=200)
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "store") == f"{Path('runs.db').absolute()}, 3 runs"
    assert row(done.stdout, "settings").startswith(str(Path("kp.toml").absolute()))


def test_runs_that_wait_for_their_score_are_told(onnx: str) -> None:
    with TraceStore("runs.db") as store:
        store.unscored.add([("kp:trace:1", "r", {})])
    said = row(cli("doctor", "--database", "runs.db", KP_EMBEDDING_MODEL=onnx).stdout, "store")
    assert "0 runs; 1 more wait to be scored" in said


def test_a_store_that_cannot_be_opened_is_broken(onnx: str) -> None:
    Path("runs.db").write_bytes(b"this is no database, and long enough to be seen as none" * 30)
    done = cli("doctor", "--database", "runs.db", KP_EMBEDDING_MODEL=onnx)
    assert done.returncode == 1
    assert row(done.stdout, "store").startswith("BROKEN: ")
    assert "runs.db" in done.stdout
    assert "reads English" in done.stdout  # it goes on
    assert "Traceback" not in done.stderr


def test_a_model_that_does_not_load_is_broken() -> None:
    done = cli("doctor", KP_EMBEDDING_MODEL="/no/such/folder")
    assert done.returncode == 1
    assert "BROKEN" in row(done.stdout, "embedding")
    assert "/no/such/folder" in row(done.stdout, "embedding")
    assert "Traceback" not in done.stderr


def test_settings_that_cannot_be_used_are_broken() -> None:
    Path("kp.toml").write_text("databas_url = 'x'\n")
    done = cli("doctor")
    assert done.returncode == 1
    assert "did you mean database_url" in done.stdout
    assert "BROKEN" in done.stdout
    assert "[postgres]" in done.stdout
    assert done.stderr == ""


def asked(server: LoopbackRegistry, onnx: str, **settings: str) -> tuple[int, str, str]:
    """Its exit status, and what it says of registry and agent; it may ask one question."""
    before = len(server.requests)
    settings = {"KP_EMBEDDING_MODEL": onnx, "KP_REGISTRY_URL": server.url, **settings}
    done = cli("doctor", columns=300, **settings)
    assert len(server.requests) - before <= 1
    assert KEY not in done.stdout + done.stderr
    agent = row(done.stdout, "agent") if "\nagent " in done.stdout else ""
    return done.returncode, row(done.stdout, "registry"), agent


def test_a_registry_is_asked_once_whether_it_knows_the_key(onnx: str) -> None:
    with LoopbackRegistry(keys={KEY}, read_limit=300) as server:
        status, said, agent = asked(server, onnx, KP_API_KEY=KEY, KP_AGENT_ID="desk")
        assert (status, said) == (0, f"{server.url}, with a key, which it knows")
        assert agent == "kp:agent:desk; the agent of the key is not known here"
        status, said, _ = asked(server, onnx, KP_API_KEY="kp_wrong", KP_AGENT_ID="desk")
        assert status == 1
        assert "BROKEN" in said
        assert "it does not know the key: it allows 60 requests a minute" in said
        assert "kp-langchain register" in said
        status, said, _ = asked(server, onnx, KP_API_KEY="")
        told = "without a key; get one: kp-langchain register"
        assert (status, said) == (0, f"{server.url}, {told}")
        assert len(server.requests) == 2
        asked(server, onnx, KP_API_KEY=KEY, KP_DISABLED="1")
        assert len(server.requests) == 2


def test_the_agent_in_force_is_held_against_that_of_the_key(onnx: str) -> None:
    with LoopbackRegistry(keys=set()) as server:
        cli("register", "--agent-id", "desk", KP_REGISTRY_URL=server.url)
        assert asked(server, onnx)[::2] == (0, "kp:agent:desk, the agent of the key")
        status, _, agent = asked(server, onnx, KP_AGENT_ID="other")
        assert status == 1
        assert "kp:agent:other, but the key is of kp:agent:desk" in agent
        assert "nothing that is sent can be withdrawn" in agent
        status, _, agent = asked(server, onnx, KP_API_KEY=KEY)
        assert status == 1
        assert "traces carry none; the agent of the key is not known here" in agent
        status, _, agent = asked(server, onnx, KP_AGENT_ID="ada@example.org")
        assert (status, "would be redacted" in agent, "ada" in agent) == (1, True, False)


def test_a_registry_that_is_not_there_is_told_and_not_broken(onnx: str) -> None:
    with unheard_port() as port:
        settings = {"KP_REGISTRY_URL": f"http://127.0.0.1:{port}", "KP_API_KEY": KEY}
        done = cli("doctor", columns=300, KP_EMBEDDING_MODEL=onnx, KP_AGENT_ID="desk", **settings)
    assert done.returncode == 0
    assert "it cannot be asked now: no connection" in row(done.stdout, "registry")


def test_a_web_page_is_no_registry(onnx: str) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    with LoopbackRegistry(misbehave=lambda *_: page) as server:
        status, said, _ = asked(server, onnx, KP_API_KEY=KEY, KP_AGENT_ID="desk")
        assert status == 1
        assert "does not seem to be the URL of a registry" in said


def test_a_registry_that_is_to_be_left_alone_is_not_asked(onnx: str) -> None:
    with LoopbackRegistry() as server, TraceStore("runs.db") as store:
        now = datetime.now(UTC)
        key_id = Registry(server.url, api_key=KEY).key_id
        until = now + timedelta(hours=1)
        throttled = (now.isoformat(), now.isoformat())
        store.outbox.save(
            Standing(server.url, key_id, until, 3600.0, "429", throttled_at=throttled)
        )
        settings = {"KP_API_KEY": KEY, "KP_AGENT_ID": "desk", "KP_DATABASE_URL": "runs.db"}
        status, said, _ = asked(server, onnx, **settings)
        assert (status, "it wants a pause of" in said) == (0, True)
        assert server.requests == []


def test_that_anybody_sees_org_is_said(onnx: str) -> None:
    with LoopbackRegistry() as server:
        settings = {"KP_REGISTRY_URL": server.url, "KP_API_KEY": KEY, "KP_EMBEDDING_MODEL": onnx}
        done = cli("doctor", KP_DOMAINS__FINANCE__VISIBILITY="org", columns=200, **settings)
        assert "shows such units to everybody" in row(done.stdout, "visibility")


def test_a_registry_that_cannot_be_used_is_broken(onnx: str) -> None:
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_REGISTRY_URL="http://registry.example.org")
    assert done.returncode == 1
    assert "BROKEN" in row(done.stdout, "registry")


def test_what_is_missing_comes_with_the_line_that_installs_it() -> None:
    Path("sitecustomize.py").write_text(HIDDEN)
    done = cli_apart("doctor", PYTHONPATH=f"{Path().absolute()}{os.pathsep}{ROOT}", columns=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "novelty is 0.5" in row(done.stdout, "embedding")
    for extra in ("sentence-transformers", "torch", "embeddings"):
        assert row(done.stdout, f"[{extra}]") == f"missing; pip install 'kp-langchain[{extra}]'"


def test_every_extra_is_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"test", "bench", "dev"} <= set(EXTRAS)
