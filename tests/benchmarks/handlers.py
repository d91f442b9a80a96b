"""What is put on the agent: nothing, floors to compare with, our handler, and its peers.

Peers are set up as they document, but send to a server on loopback that takes whatever it is sent.
The server is a process of its own, so that its work is not counted as the handler's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.request import urlopen

from langchain_core.callbacks import BaseCallbackHandler

_LOST = ("dropped", "failed", "not_stored", "callback_errors", "redaction_errors", "dropped_steps")
_KEY = "none"  # the server asks for none
# What LangSmith asks before it sends; this is how its service answers.
_INFO = {
    "version": "0.12.0",
    "instance_flags": {"zstd_compression_enabled": True},
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_971_520,
    },
}


class FaultyError(RuntimeError):
    """A handler did not do what it is measured for."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Attached:
    """A handler as it sits on the agent.

    Attributes:
        callbacks: The callbacks of a run.
        settle: Waits until all is done that the handler does behind the agent's back, such as
            scoring or sending. It is part of what the handler costs.
        faults: What went wrong, by name and number; a handler that loses runs is cheap.
        switch_on: Called before a run, where the handler sits in LangChain itself.
        switch_off: Called after it, so that the next run is without.
    """

    callbacks: Sequence[Any] = ()
    settle: Callable[[], object] = _nothing
    faults: Callable[[], Mapping[str, int]] = field(default=dict)
    switch_on: Callable[[], object] = _nothing
    switch_off: Callable[[], object] = _nothing


class Elsewhere(BaseCallbackHandler):
    """Does nothing, and leaves it to LangChain where; in async agents that is another thread."""

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Without it LangChain would write all messages out for `on_llm_start`."""


class Inline(Elsewhere):
    """Does nothing, where the event happens."""

    run_inline = True


def base_tracer(_folder: Path, _server: str) -> Attached:
    from langchain_core.tracers import BaseTracer

    class Persistless(BaseTracer):
        def _persist_run(self, run: Any) -> None:
            pass

    return Attached([Persistless()])


class _NoReceiver:
    """Lets finished runs go."""

    def prepare(self) -> None:
        pass

    def add(self, record: object) -> None:
        pass

    def add_paused(self, record: object) -> None:
        pass

    def forget_paused(self, thread_id: str, until: object) -> None:
        pass


def recording(_folder: Path, _server: str) -> Attached:
    """Attach ours with scoring off: every event is recorded, and a finished run is let go."""
    from kp_langchain import KPCallbackHandler, Scorer

    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    # There is no switch for this: without scoring, recording would have no purpose.
    handler._recorder._receiver = _NoReceiver()
    return Attached([handler], faults=lambda: lost(handler.stats()))


def everything(folder: Path, _server: str) -> Attached:
    """Attach ours with all on but an embedder; every run passes, so that it is stored whole."""
    from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer

    handler = KPCallbackHandler(
        store=folder / "traces.db",
        scorer=Scorer(embedder=None),
        policy=DomainPolicy(threshold=0.0, twin_similarity=1.0),
    )
    return Attached([handler], settle=handler.flush, faults=lambda: lost(handler.stats()))


def lost(stats: Mapping[str, int]) -> dict[str, int]:
    """Return those of our handler's counts that say what it did not do."""
    return {name: stats[name] for name in _LOST if stats[name]}


def langsmith(_folder: Path, server: str) -> Attached:
    from langchain_core.tracers import LangChainTracer
    from langsmith import Client

    client = Client(api_url=server, api_key=_KEY)
    return Attached([LangChainTracer(client=client)], settle=client.flush)


def langfuse(_folder: Path, server: str) -> Attached:
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler

    client = Langfuse(public_key=_KEY, secret_key=_KEY, base_url=server)
    return Attached([CallbackHandler(public_key=_KEY)], settle=client.flush)


def openinference(_folder: Path, server: str) -> Attached:
    from openinference.instrumentation.langchain import LangChainInstrumentor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{server}/v1/traces")))
    instrumentor = LangChainInstrumentor()
    return Attached(
        settle=provider.force_flush,
        switch_on=lambda: instrumentor.instrument(tracer_provider=provider, skip_dep_check=True),
        switch_off=instrumentor.uninstrument,
    )


def mlflow(_folder: Path, server: str) -> Attached:
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{server}/v1/traces"
    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    from mlflow.langchain.langchain_tracer import MlflowLangchainTracer
    from mlflow.tracing.provider import provider

    def settle() -> None:
        tracing: Any = provider.get()
        tracing.force_flush()

    # What `mlflow.langchain.autolog()` adds to every run.
    return Attached([MlflowLangchainTracer()], settle=settle)


@dataclass(frozen=True)
class Candidate:
    """A handler to put on the agent.

    Attributes:
        title: As the tables show it.
        attach: Makes it, with a folder of its own and the address of the server.
        needs: Modules without which it cannot be measured; the `bench` extra brings them.
        imports: The statement that imports its handler, where that is measured.
    """

    title: str
    attach: Callable[[Path, str], Attached]
    needs: Sequence[str] = ()
    imports: str = ""

    @property
    def sends(self) -> bool:
        """Whether it sends the runs to the server."""
        return bool(self.needs)

    @property
    def is_installed(self) -> bool:
        return all(_is_there(module) for module in self.needs)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


_OTLP = "opentelemetry.exporter.otlp.proto.http"
CANDIDATES = {
    "none": Candidate(
        "no handler", lambda *_: Attached(), imports="import langchain_core.callbacks"
    ),
    "inline": Candidate("no-op, inline", lambda *_: Attached([Inline()])),
    "elsewhere": Candidate("no-op, not inline", lambda *_: Attached([Elsewhere()])),
    "recording": Candidate("kp-langchain, recording only", recording),
    "everything": Candidate(
        "kp-langchain, everything on",
        everything,
        imports="from kp_langchain import KPCallbackHandler",
    ),
    "base_tracer": Candidate("BaseTracer, keeping nothing", base_tracer),
    "langsmith": Candidate(
        "LangSmith", langsmith, ("langsmith",), "from langchain_core.tracers import LangChainTracer"
    ),
    "langfuse": Candidate(
        "Langfuse", langfuse, ("langfuse",), "from langfuse.langchain import CallbackHandler"
    ),
    "openinference": Candidate(
        "OpenInference",
        openinference,
        ("openinference.instrumentation.langchain", _OTLP),
        "from openinference.instrumentation.langchain import LangChainInstrumentor; "
        "LangChainInstrumentor().instrument()",  # it imports its tracer when it is switched on
    ),
    "mlflow": Candidate(
        "MLflow",
        mlflow,
        ("mlflow.langchain", "sqlparse", _OTLP),  # mlflow-tracing needs it and does not bring it
        "from mlflow.langchain.langchain_tracer import MlflowLangchainTracer",
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
            with _server() as address:
                handler = candidate.attach(Path(folder), address)
                yield handler
                with urlopen(f"{address}/received") as answer:  # noqa: S310 - our own address
                    if not int(answer.read()):
                        raise FaultyError(f"{candidate.title} sent nothing")
        if faults := handler.faults():
            raise FaultyError(f"{candidate.title} counts {dict(faults)}")


@contextmanager
def _server() -> Iterator[str]:
    """Run the server until the end of the block; give its address."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # it ends with us, however we end
            process.wait(60)


_received: list[int] = []  # lengths of bodies


class _TakesAll(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _body_length(self) -> int:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return len(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        length = 0
        while size := int(self.rfile.readline().split(b";")[0], 16):
            length += len(self.rfile.read(size + 2)) - 2
        self.rfile.readline()
        return length

    def _take(self) -> None:
        _received.append(self._body_length())
        is_spans = self.path.endswith("/traces")
        answers = {"/info": _INFO, "/received": sum(_received)}
        body = b"" if is_spans else json.dumps(answers.get(self.path, {})).encode()
        self.send_response(200 if is_spans or self.command == "GET" else 202)
        kind = "application/x-protobuf" if is_spans else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = _take  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Be the server until whoever started it goes away."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _TakesAll)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
