"""What the built wheel must do with nothing but its base dependencies installed."""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
from importlib.metadata import files, version
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer, TraceStore

COMMAND = Path(sys.executable).with_name("kp-langchain")
EXTRAS = (
    "langchain", "langgraph", "torch", "sentence_transformers", "fastembed", "psycopg", "pyarrow",
    "pytest",
)  # fmt: skip


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)


def the_wheel_is_what_is_installed() -> None:
    assert [name for name in EXTRAS if importlib.util.find_spec(name)] == []
    installed = {str(file) for file in files("kp-langchain") or ()}
    assert "kp_langchain/py.typed" in installed
    assert not [name for name in installed if name.startswith(("tests", "examples"))]
    assert command("--version").stdout == f"kp-langchain {version('kp-langchain')}\n"


def a_chain_is_recorded_scored_and_stored(database: Path) -> None:
    with TraceStore(database) as store:
        handler = KPCallbackHandler("finance", policy=DomainPolicy(threshold=0.0), store=store)
        prompt = ChatPromptTemplate.from_template("{question}")
        chain = prompt | FakeListChatModel(responses=["42"]) | StrOutputParser()
        assert chain.invoke({"question": "6 x 7?"}, {"callbacks": [handler]}) == "42"
        scored = handler.last(60)
        assert scored is not None
        assert scored.decision == "kept"
        assert [step.content for step in scored.trace.steps] == ["42"]
        stored = store.get(scored.trace.id)
        assert stored is not None
        assert stored.trace == scored.trace
        assert stored.score == scored.breakdown.total

    alone = Scorer().score(scored.trace)
    assert alone.novelty.value == 0.5
    assert alone.novelty_source == "embeddings extra not installed"

    (line,) = command("review", "--database", str(database), "--json").stdout.splitlines()
    assert json.loads(line)["trace_id"] == scored.trace.id
    words = ("export", "--format", "openai", "--database", str(database))
    (line,) = command(*words).stdout.splitlines()
    assert json.loads(line)["messages"][-1] == {"role": "assistant", "content": "42"}


def the_log_tells_the_score_and_what_to_install(log: str) -> None:
    assert log.count("kp.trace_scored finance kept") == 1
    assert log.count("pip install 'kp-langchain[embeddings]'") == 1


def the_report_is_written(database: Path) -> None:
    page = database.with_name("page.html")
    report = command("report", "--html", str(page), "--database", str(database))
    assert report.returncode == 0
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


def the_demo_says_what_to_install(database: Path) -> None:
    demo = command("demo", "--database", str(database))
    assert demo.returncode == 1
    assert "pip install 'kp-langchain[demo]'" in demo.stderr
    assert "Traceback" not in demo.stderr


if __name__ == "__main__":
    the_wheel_is_what_is_installed()
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        logging.basicConfig(filename=log, level=logging.INFO)
        a_chain_is_recorded_scored_and_stored(Path(folder, "runs.db"))
        the_log_tells_the_score_and_what_to_install(log.read_text())
        the_report_is_written(Path(folder, "runs.db"))
        the_demo_says_what_to_install(Path(folder, "demo.db"))
    print("imports, versions, a chain, the store, scoring, and what to install are right")
