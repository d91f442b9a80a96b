"""Peers, each set up as it documents, but sending to a server that swallows everything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.benchmarks.attached import Attached

_KEY = "none"  # the server asks for none


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
        [],
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
