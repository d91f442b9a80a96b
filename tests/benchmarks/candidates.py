"""What is put on the agent: nothing, floors to compare with, our handler, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from tests.benchmarks import peers
from tests.benchmarks.attached import Attached
from tests.benchmarks.swallow import swallowing

_LOST = ("dropped", "failed", "not_stored", "callback_errors", "redaction_errors", "dropped_steps")


class FaultyError(RuntimeError):
    """A handler did not do what it is measured for."""


class Elsewhere(BaseCallbackHandler):
    """Does nothing, and leaves it to LangChain where; in async agents that is another thread."""

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Without it LangChain would write all messages out for `on_llm_start`."""


class Inline(Elsewhere):
    """Does nothing, where the event happens."""

    run_inline = True


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


def lost(stats: Mapping[str, int]) -> dict[str, int]:
    """Of our handler's counts, those of what it did not do."""
    return {name: stats[name] for name in _LOST if stats[name]}


def recording(_folder: Path, _server: str) -> Attached:
    """Ours with scoring off: every event is recorded, and a finished run is let go."""
    from kp_langchain import KPCallbackHandler, Scorer

    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    # There is no switch for this: without scoring, recording would have no purpose.
    handler._recorder._deliver = lambda record: None

    def faults() -> dict[str, int]:
        stats = handler.stats()
        scored = {"scored": stats["scored"]} if stats["scored"] else {}
        return {**lost(stats), **scored}

    return Attached([handler], faults=faults)  # it leaves nothing behind that would have to settle


def everything(folder: Path, _server: str) -> Attached:
    """Ours with all on but an embedder; every run passes, so that every run is stored whole."""
    from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer

    handler = KPCallbackHandler(
        store=folder / "traces.db",
        scorer=Scorer(embedder=None),
        policy=DomainPolicy(threshold=0.0),
    )
    return Attached([handler], settle=handler.flush, faults=lambda: lost(handler.stats()))


@dataclass(frozen=True)
class Candidate:
    """Something to put on the agent.

    Args:
        title: As the tables show it.
        attach: Makes it, given a folder of its own and the address of a server that swallows
            everything.
        needs: Modules without which it cannot be measured; the `bench` extra brings them.
        sends: Whether it sends the runs to that server.
        imports: The statement that gets its handler, where that is measured.
    """

    title: str
    attach: Callable[[Path, str], Attached]
    needs: Sequence[str] = ()
    sends: bool = False
    imports: str = ""

    @property
    def installed(self) -> bool:
        return all(_is_there(module) for module in self.needs)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


CANDIDATES = {
    "none": Candidate("no handler", nothing, imports="import langchain_core.callbacks"),
    "inline": Candidate("no-op, inline", inline),
    "elsewhere": Candidate("no-op, not inline", elsewhere),
    "recording": Candidate("kp-langchain, recording only", recording),
    "everything": Candidate(
        "kp-langchain, everything on",
        everything,
        imports="from kp_langchain import KPCallbackHandler",
    ),
    "base_tracer": Candidate(
        "BaseTracer, keeping nothing",
        base_tracer,
        imports="from langchain_core.tracers import BaseTracer",
    ),
    "langsmith": Candidate(
        "LangSmith",
        peers.langsmith,
        ("langsmith",),
        sends=True,
        imports="from langchain_core.tracers import LangChainTracer",
    ),
    "langfuse": Candidate(
        "Langfuse",
        peers.langfuse,
        ("langfuse",),
        sends=True,
        imports="from langfuse.langchain import CallbackHandler",
    ),
    "openinference": Candidate(
        "OpenInference",
        peers.openinference,
        ("openinference.instrumentation.langchain", "opentelemetry.exporter.otlp.proto.http"),
        sends=True,
        imports=(  # it imports its tracer when it is switched on
            "from openinference.instrumentation.langchain import LangChainInstrumentor; "
            "LangChainInstrumentor().instrument()"
        ),
    ),
    "mlflow": Candidate(
        "MLflow",
        peers.mlflow,
        ("mlflow.langchain", "opentelemetry.exporter.otlp.proto.http"),
        sends=True,
        imports="from mlflow.langchain.langchain_tracer import MlflowLangchainTracer",
    ),
}


@contextmanager
def attached(name: str) -> Iterator[Attached]:
    """Make the candidate `name`, with a folder and, where it sends, a server of its own.

    Raises:
        FaultyError: Afterwards, when it lost something or nothing arrived at the server.
    """
    candidate = CANDIDATES[name]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if not candidate.sends:
            handler = candidate.attach(Path(folder), "")
            yield handler
        else:
            with swallowing() as server:
                handler = candidate.attach(Path(folder), server.address)
                yield handler
                if not server.received_bytes():
                    raise FaultyError(f"{candidate.title} sent nothing")
        if faults := handler.faults():
            raise FaultyError(f"{candidate.title} counts {dict(faults)}")
