"""One run seen in several ways: by the handler, and by tracers whose files are then imported.

And how the imported traces differ from those of the handler. The tracers are imported where they
are needed: the golden files of imports are compared also where they are not installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.tracers.langchain import LangChainTracer
from langsmith import Client
from langsmith._internal._operations import serialize_run_dict

from kp_langchain import ScoredTrace, Scorer, Settings, TraceStore
from kp_langchain.importing.importer import FileReader, Imported, Importer
from kp_langchain.importing.recorded_run import RecordedRun
from tests.loopback_tools import LoopbackTool, Request, spans_in_memory

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_UNLIMITED = 100_000


@dataclass
class Files:
    """What the tracers recorded, in the form of their exports."""

    langsmith: list[dict[str, Any]] = field(default_factory=list)
    openinference: list[dict[str, Any]] = field(default_factory=list)
    genai: list[dict[str, Any]] = field(default_factory=list)

    def lines(self, name: str) -> str:
        return "".join(f"{json.dumps(one)}\n" for one in getattr(self, name))


@contextmanager
def traced() -> Iterator[Files]:
    """Record what runs inside the block with OpenInference's and LangSmith's tracers."""
    files = Files()
    with _openinference(files), _langsmith(files):
        yield files


@contextmanager
def _openinference(files: Files) -> Iterator[None]:
    from openinference.instrumentation.langchain import LangChainInstrumentor

    exporter, provider = spans_in_memory()
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider, separate_trace_from_runtime_context=True)
    try:
        yield
    finally:
        instrumentor.uninstrument()
        files.openinference.extend(otlp_json(span) for span in exporter.get_finished_spans())


def otlp_json(*spans: ReadableSpan) -> dict[str, Any]:
    """Spans as the collector's file exporter writes them."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    batch = MessageToDict(encode_spans(spans))
    for resource in batch["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                _write_ids_as_hex(span)
    return batch


def _write_ids_as_hex(span: dict[str, Any]) -> None:
    from base64 import b64decode

    for name in ("traceId", "spanId", "parentSpanId"):
        if span.get(name):
            span[name] = b64decode(span[name]).hex()


@contextmanager
def _langsmith(files: Files) -> Iterator[None]:
    runs: dict[str, dict[str, Any]] = {}

    def receive(request: Request) -> tuple[int, Any]:
        if request.method in ("POST", "PATCH") and request.body:
            body = request.json
            name = body.get("id") or request.path.rsplit("/", 1)[-1]
            runs.setdefault(name, {"id": name}).update(
                {key: value for key, value in body.items() if value is not None}
            )
        return 200, {}

    with LoopbackTool(receive) as tool:
        client = Client(tool.url, api_key="key", auto_batch_tracing=False, info={})
        tracer = LangChainTracer(project_name="recorded", client=client)
        with _attached(tracer):
            yield
        tracer.wait_for_futures()
    files.langsmith.extend(runs.values())
    files.genai.extend(_as_spans(files.langsmith))


def _as_spans(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """LangSmith runs as its own exporter writes them into spans."""
    from langsmith._internal.otel._otel_exporter import OTELExporter

    exporter, provider = spans_in_memory()
    bodies = [
        {**run, "id": UUID(run["id"]), "trace_id": UUID(run["trace_id"])}
        for run in sorted(runs, key=lambda run: run["dotted_order"])
        if run.get("end_time")
    ]
    late = {"outputs": None, "error": None, "end_time": None}
    begun = [serialize_run_dict("post", {**body, **late}) for body in bodies]
    ended = [serialize_run_dict("patch", body) for body in reversed(bodies)]
    OTELExporter(provider).export_batch([*begun, *ended], {})
    return (otlp_json(span) for span in exporter.get_finished_spans())


@contextmanager
def _attached(handler: BaseCallbackHandler) -> Iterator[None]:
    """Attach a handler to every callback manager that is made, as instrumentors do."""
    original = BaseCallbackManager.__init__

    def init(self: BaseCallbackManager, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if handler not in self.inheritable_handlers:
            self.add_handler(handler, inherit=True)

    BaseCallbackManager.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseCallbackManager.__init__ = original  # type: ignore[method-assign]


# ------------------------------------------------------------------ the import


def import_values(
    values: Iterable[Any], folder: Path, *, domain: str = "default"
) -> list[Imported]:
    """Import what the lines of one file hold, into a new store without an embedder."""
    reader = FileReader()
    parts: list[Any] = []
    for number, value in enumerate(values, 1):
        parts += reader.add(json.loads(json.dumps(value)), f"file:{number}")
    parts += reader.conclude()
    runs = [part for part in parts if isinstance(part, RecordedRun)]
    assert len(runs) == len(parts), [part for part in parts if part not in runs]
    with TraceStore(folder / "imported.db") as store:
        importer = Importer(store, Settings(), domain=domain, scorer=Scorer(embedder=None))
        result = list(importer.run(runs))
        importer.close()
    return result


def comparable(scored: ScoredTrace) -> dict[str, Any]:
    """What must be equal: everything except ids and the last digits of times."""
    trace = scored.trace
    steps = [step.model_dump(exclude_none=True, exclude={"latency_ms"}) for step in trace.steps]
    return {
        "steps": steps, "has_latency": [step.latency_ms is not None for step in trace.steps],
        "task": trace.task.model_dump(), "outcome": trace.outcome.model_dump(),
        "success": trace.metadata.success, "framework": trace.metadata.framework,
        "domain": trace.metadata.task_domain, "score": round(scored.breakdown.total, 6),
        "decision": scored.decision,
    }  # fmt: skip


def differences(
    recorded: list[ScoredTrace], imported: list[ScoredTrace], *, any_order: bool = False
) -> list[str]:
    """In words, what differs; empty if nothing does.

    Args:
        recorded: What the handler scored.
        imported: What the import scored.
        any_order: Whether tools between two thoughts may come in another order.
    """
    ours, theirs = (
        [comparable(one) for one in sorted(runs, key=lambda one: one.trace.metadata.created_at)]
        for runs in (recorded, imported)
    )
    if len(ours) != len(theirs):
        return [f"{len(ours)} traces, imported {len(theirs)}"]
    if any_order:
        for one in (*ours, *theirs):
            one["steps"] = _without_order(one["steps"])
            one["has_latency"] = sorted(one["has_latency"])
    # Which of several runs at once is the first of its kind is not stated.
    for one in (ours, theirs):
        scores = sorted(each["score"] for each in one)
        for each, score in zip(one, scores, strict=True):
            each["score"] = score
    return [
        f"{name}: {a[name]!r}, imported {b[name]!r}"
        for a, b in zip(ours, theirs, strict=True)
        for name in a
        if a[name] != b[name]
    ]


def _without_order(steps: list[dict[str, Any]]) -> list[list[str]]:
    """Steps without their numbers, sorted between each two thoughts."""
    groups: list[list[str]] = [[]]
    for step in steps:
        if step["type"] == "thought":
            groups.append([])
        groups[-1].append(json.dumps({**step, "step_id": 0}, sort_keys=True))
    return [sorted(group) for group in groups]
