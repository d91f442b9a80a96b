"""What is put on the agent: nothing, floors to compare with, our handler, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from tests.benchmarks import peers
from tests.benchmarks.attached import Attached


class Inline(BaseCallbackHandler):
    """Does nothing, where the event happens."""

    run_inline = True


class Elsewhere(BaseCallbackHandler):
    """Does nothing, and leaves it to LangChain where; in async agents that is another thread."""


def nothing(_folder: Path, _server: str) -> Attached:
    return Attached([])


def inline(_folder: Path, _server: str) -> Attached:
    return Attached([Inline()])


def elsewhere(_folder: Path, _server: str) -> Attached:
    return Attached([Elsewhere()])


def base_tracer(_folder: Path, _server: str) -> Attached:
    from langchain_core.tracers import BaseTracer

    class Persistless(BaseTracer):
        def _persist_run(self, run: Any) -> None:
            pass

    return Attached([Persistless()])


def recording(_folder: Path, _server: str) -> Attached:
    """Ours with scoring off: every event is recorded, and a finished run is let go."""
    from kp_langchain import KPCallbackHandler, Scorer

    class RecordingOnly(KPCallbackHandler):
        # There is no switch for this: without scoring, recording would have no purpose.
        def _deliver(self, record: Any) -> None:
            pass

    handler = RecordingOnly(store=None, scorer=Scorer(embedder=None))
    return Attached([handler], settle=handler.flush, account=handler.stats)


def everything(folder: Path, _server: str) -> Attached:
    """Ours as it comes, without an embedder: redaction, scoring, a SQLite file."""
    from kp_langchain import KPCallbackHandler, Scorer

    handler = KPCallbackHandler(store=folder / "traces.db", scorer=Scorer(embedder=None))
    return Attached([handler], settle=handler.flush, account=handler.stats)


@dataclass(frozen=True)
class Candidate:
    """Something to put on the agent.

    Args:
        title: As the table shows it.
        attach: Makes it, given a folder of its own and the address of a server that swallows
            everything.
        needs: Modules without which it cannot be measured.
        install: What to give to pip for them.
        imports: The statement that gets its handler.
    """

    title: str
    attach: Callable[[Path, str], Attached]
    needs: Sequence[str] = ()
    install: str = ""
    imports: str = ""

    @property
    def missing(self) -> str:
        """What to do to have it; "" where it is there."""
        there = all(_is_there(module) for module in self.needs)
        return "" if there else f"not installed: pip install {self.install}"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


CANDIDATES = {
    "inline": Candidate("no-op, inline", inline),
    "elsewhere": Candidate("no-op, not inline", elsewhere),
    "recording": Candidate("kp-langchain, recording only", recording),
    "everything": Candidate(
        "kp-langchain, redacted, scored, in SQLite",
        everything,
        imports="from kp_langchain import KPCallbackHandler",
    ),
    "base_tracer": Candidate(
        "BaseTracer that keeps nothing",
        base_tracer,
        imports="from langchain_core.tracers import BaseTracer",
    ),
    "langsmith": Candidate(
        "LangSmith",
        peers.langsmith,
        ("langsmith",),
        "langsmith",
        "from langchain_core.tracers import LangChainTracer",
    ),
    "langfuse": Candidate(
        "Langfuse",
        peers.langfuse,
        ("langfuse",),
        "langfuse",
        "from langfuse.langchain import CallbackHandler",
    ),
    "openinference": Candidate(
        "OpenInference",
        peers.openinference,
        ("openinference.instrumentation.langchain", "opentelemetry.exporter.otlp.proto.http"),
        "openinference-instrumentation-langchain opentelemetry-exporter-otlp-proto-http",
        "from openinference.instrumentation.langchain import LangChainInstrumentor",
    ),
    "mlflow": Candidate(
        "MLflow",
        peers.mlflow,
        ("mlflow", "opentelemetry.exporter.otlp.proto.http"),
        "mlflow-skinny opentelemetry-exporter-otlp-proto-http",
        "from mlflow.langchain.langchain_tracer import MlflowLangchainTracer",
    ),
}
BASELINE = Candidate("no handler", nothing)
