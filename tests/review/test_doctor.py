"""`kp-langchain doctor`: what it says, and whether its exit status is right."""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from pathlib import Path

import pytest

import kp_langchain
from kp_langchain import TraceStore
from kp_langchain.review.doctor import EXTRAS
from tests.agents import ASK, handler, searching
from tests.review.test_cli import ROOT, cli
from tests.trusting import write_trusted

HIDDEN = "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"


@pytest.fixture
def onnx(onnx_folder: Path) -> str:
    """A folder with all-MiniLM-L6-v2 that loads fast."""
    return str(onnx_folder)


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
    assert languages.startswith("reads English, Spanish cannot read Chinese (")
    assert "KP_EMBEDDING_MODEL=sentence-transformers/paraphrase-multilingual" in languages
    assert row(out, "[embeddings]") == "installed"
    assert "BROKEN" not in out


def test_no_database_is_made(onnx: str) -> None:
    for words in (["doctor"], ["doctor", "--database", "new.db"]):
        done = cli(*words, KP_EMBEDDING_MODEL=onnx)
        assert done.returncode == 0, done.stdout
        assert "not there yet" in row(done.stdout, "store")
    assert [path for path in Path().rglob("*") if path.is_file()] == []
    assert not Path(os.environ["XDG_DATA_HOME"]).exists()


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


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("kp_0123456789abcdef", "with a key"),
        ("", "without a key; get one: kp-langchain register"),
    ],
)
def test_a_registry_is_named_and_its_key_is_not(onnx: str, key: str, said: str) -> None:
    url = "https://registry.example.org"
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_REGISTRY_URL=url, KP_API_KEY=key)
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "registry") == f"{url}, {said}"
    assert "0123456789" not in done.stdout + done.stderr


def test_a_registry_that_cannot_be_used_is_broken(onnx: str) -> None:
    done = cli("doctor", KP_EMBEDDING_MODEL=onnx, KP_REGISTRY_URL="http://registry.example.org")
    assert done.returncode == 1
    assert "BROKEN" in row(done.stdout, "registry")


def test_what_is_missing_comes_with_the_line_that_installs_it() -> None:
    Path("sitecustomize.py").write_text(HIDDEN)
    done = cli("doctor", PYTHONPATH=f"{Path().absolute()}{os.pathsep}{ROOT}", columns=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "novelty is 0.5" in row(done.stdout, "embedding")
    for extra in ("embeddings", "torch"):
        assert row(done.stdout, f"[{extra}]") == f"missing; pip install 'kp-langchain[{extra}]'"


def test_every_extra_is_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"test", "bench", "dev"} <= set(EXTRAS)
