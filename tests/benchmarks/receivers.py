"""What each score receiver costs an agent, beside the tool's own tracer.

    python -m tests.benchmarks.receivers [--rounds 30] [--tool NAME]

Each tool is measured in a process of its own, against a server in another one; Phoenix and
OpenTelemetry keep spans and records in memory. A round plays the agent once each with nothing, with
the tool's tracer, with the tracer and a `KPCallbackHandler`, and with the handler's receiver as
well, in an order that changes from round to round. Measured are the CPU of the agent's thread while
the agent runs, and the CPU of the whole process until all is sent. What is added is the median over
the rounds of the difference to the way before it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from kp_langchain import KPCallbackHandler, Scorer
from tests.benchmarks.machine import description
from tests.benchmarks.workload import make_agent, question
from tests.integrations.tools import TOOLS, ToolServer, attach
from tests.loopback_tools import LoopbackTool

WAYS = ("nothing", "tracer", "handler", "receiver")
_WARM_UP = 3
_SETTLE_S = 60.0


@dataclass
class RemoteServer:
    """The server of a tool in another process, as the drivers of the tools see it."""

    url: str
    answer: Any = None

    def sent_to(self, *_: str) -> list[Any]:
        return []


@contextmanager
def remote_server() -> Iterator[RemoteServer]:
    """Run the server of all tools in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield RemoteServer(process.stdout.readline().strip())
        finally:
            process.communicate("")  # it serves until its input ends


def _serve() -> None:
    with LoopbackTool(ToolServer()) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU of one run: of the agent's thread, and of the process until all is sent."""

    thread_s: float
    process_s: float


def _measure(tool_name: str, rounds: int) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch, remote_server() as server:
        tool = attach(tool_name, server, patch)  # type: ignore[arg-type]
        handlers = {
            way: KPCallbackHandler(
                store=None,
                scorer=Scorer(embedder=None),
                send_scores_to=[tool_name] if way == "receiver" else [],
            )
            for way in WAYS[2:]
        }
        agent = make_agent()

        def play(way: str) -> Cost:
            callbacks = [] if way == "nothing" else [*tool.handlers]
            handler = handlers.get(way)
            if handler is not None:
                callbacks.append(handler)
            with _instrumented(is_on=way != "nothing"):
                gc.collect()
                process_s, thread_s = time.process_time(), time.thread_time()
                agent.invoke(question(), {"callbacks": callbacks})
                thread_s = time.thread_time() - thread_s
                if way != "nothing":
                    tool.flush()
                if handler is not None and not handler.send(_SETTLE_S):
                    raise RuntimeError(f"{tool_name} did not take the scores in {_SETTLE_S} s")
                return Cost(thread_s, time.process_time() - process_s)

        for _ in range(_WARM_UP):  # imports, connections, threads
            for way in WAYS:
                play(way)
        gc.freeze()
        costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for at in range(len(WAYS)):
                way = WAYS[(at + number) % len(WAYS)]
                costs[way].append(play(way))
        stats = handlers["receiver"].stats()
        if stats["scores_sent"] != rounds + _WARM_UP:
            raise RuntimeError(f"{tool_name} got {stats['scores_sent']} of the scores: {stats}")
    return {
        kind: {
            "without_ms": median(getattr(one, kind) for one in costs["nothing"]) * 1e3,
            **{
                way: _added(costs[way], costs[before], kind)
                for before, way in itertools.pairwise(WAYS)
            },
        }
        for kind in ("thread_s", "process_s")
    }


def _added(costs: list[Cost], before: list[Cost], kind: str) -> float:
    """Return by how many microseconds one way costs more than another, by the median."""
    pairs = zip(costs, before, strict=True)
    return median(getattr(a, kind) - getattr(b, kind) for a, b in pairs) * 1e6


@contextmanager
def _instrumented(*, is_on: bool) -> Iterator[None]:
    """Take OpenInference's instrumentor off for a run that is to be without it."""
    module: Any = sys.modules.get("openinference.instrumentation.langchain")
    instrumentor = None if module is None else module.LangChainInstrumentor()
    if is_on or instrumentor is None or not instrumentor.is_instrumented_by_opentelemetry:
        yield
        return
    restore = _take_off(instrumentor)
    try:
        yield
    finally:
        restore()


def _take_off(instrumentor: Any) -> Callable[[], None]:
    from langchain_core.callbacks import BaseCallbackManager

    instrumented = BaseCallbackManager.__init__
    BaseCallbackManager.__init__ = instrumented.__wrapped__  # type: ignore[attr-defined, method-assign]

    def restore() -> None:
        BaseCallbackManager.__init__ = instrumented  # type: ignore[method-assign]

    return restore


def _report(measured: dict[str, dict[str, Any]]) -> None:
    for kind, title in (("thread_s", "agent's thread"), ("process_s", "process")):
        print(f"\nCPU of a run, {title}: microseconds added to a run (ratio to a run with nothing)")
        print(f"{'tool':<14}{'nothing, ms':>12}{'tracer':>18}{'handler':>18}{'receiver':>18}")
        for tool, figures in measured.items():
            one = figures[kind]
            base_us = one["without_ms"] * 1e3
            added = (f"{one[way]:,.0f} ({one[way] / base_us:.3f})" for way in WAYS[1:])
            cells = "".join(f"{cell:>18}" for cell in added)
            print(f"{tool:<14}{one['without_ms']:>12.1f}{cells}")


def main() -> None:
    """Measure all tools, or one, and print what is added."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tool", choices=TOOLS)
    parser.add_argument("--serve", action="store_true", help="for its own use")
    parser.add_argument("--json", action="store_true", help="for its own use")
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    if options.json:
        print(json.dumps(_measure(options.tool, options.rounds)))
        return
    measured = {}
    for tool in [options.tool] if options.tool else TOOLS:
        words = ["--json", "--tool", tool, "--rounds", str(options.rounds)]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", __spec__.name, *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        measured[tool] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(description()))
    _report(measured)


if __name__ == "__main__":
    main()
