"""What the server of each tool receives of the scores of runs, in the ways that runs happen.

    python -m tests.benchmarks.delivered [--tool NAME]

Each tool is in a process of its own, with its own package and tracer, and a server on loopback:

1. one run;
2. 16 concurrent async runs on one shared handler: how many scores are on the trace of their run;
3. a verdict on one of them afterwards: how many scores have a new value under their old id;
4. a server that refuses connections, and one that accepts and never answers: the wall time of a
   run with the tool's tracer alone, with a handler beside it, and with the handler that sends
   scores; what is counted; and how long the process takes to end after its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
from tests.benchmarks.apart import ROOT
from tests.benchmarks.receivers import RemoteServer
from tests.integrations.tools import TOOLS, ToolServer, ask, ask_at_once, attach, question_in
from tests.loopback_tools import LoopbackTool

RUNS = 16
_SEND_S = 60.0
_OTHER_QUESTION = 99
_RUNS_DOWN = 25
_WARM_UP = 5
_PLAYS = ("tracer", "handler", "receiver")
_LONGEST_END_S = 30.0
_DOWN = ("refuses", "never answers")
_COUNTS = ("scores_sent", "scores_failed", "scores_dropped", "scores_without_trace")


def _handler(tool: str, scored: list[ScoredTrace]) -> KPCallbackHandler:
    return KPCallbackHandler(
        store="delivered.db",
        scorer=Scorer(embedder=None),
        on_scored=scored.append,
        send_scores_to=[tool],
    )


def _deliver(tool_name: str) -> dict[str, Any]:
    """Play one run, many at once, and a late verdict."""
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch, LoopbackTool(ToolServer()) as server:
        tool = attach(tool_name, server, patch)
        scored: list[ScoredTrace] = []
        handler = _handler(tool_name, scored)

        def settle() -> None:
            if not handler.send(_SEND_S):
                raise RuntimeError(f"{tool_name} did not take the scores in {_SEND_S} s")
            tool.flush()

        asyncio.run(ask([handler, *tool.handlers], _OTHER_QUESTION))
        settle()
        one = len(tool.scores())
        ask_at_once([handler, *tool.handlers], runs=RUNS)
        settle()
        before = {each.id: each for each in tool.scores()}
        traces = tool.traces()
        on_own_trace = sum(
            any(
                each.trace_id == traces[question_in(run.trace.task.objective)]
                and run.breakdown.line() in each.comment
                for each in before.values()
            )
            for run in scored[1:]
        )
        late = scored[-1]
        handler.report_outcome(late.run_id, success=not late.trace.metadata.success)
        settle()
        after = {each.id: each for each in tool.scores()}
        return {
            "one": one,
            "sent": RUNS,
            "received": len(before),
            "on_own_trace": on_own_trace,
            "changed": sum(after[id_].value != before[id_].value for id_ in before),
            "new_ids": len(after.keys() - before.keys()),
        }


@contextmanager
def _deaf_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield listener.getsockname()[1]


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _play_without_server(tool_name: str, url: str, play: str) -> None:
    """Play runs whose tool does not answer, print what is counted, and let the process end."""
    logging.disable(logging.CRITICAL)
    patch = pytest.MonkeyPatch()
    tool = attach(tool_name, RemoteServer(url), patch)  # type: ignore[arg-type]
    handlers = {
        "tracer": [],
        "handler": [KPCallbackHandler(store="delivered.db", scorer=Scorer(embedder=None))],
        "receiver": [_handler(tool_name, [])],
    }[play]
    times_s = []
    for _ in range(_RUNS_DOWN):
        began_s = time.perf_counter()
        ask_at_once([*handlers, *tool.handlers], runs=1)
        times_s.append(time.perf_counter() - began_s)
    counts = dict.fromkeys(_COUNTS, 0)
    for handler in handlers:
        handler.flush(_SEND_S)
        handler.send(20.0)
        counts = {name: handler.stats()[name] for name in _COUNTS}
    run_ms = median(times_s[_WARM_UP:]) * 1e3
    print(json.dumps({"run_ms": run_ms, **counts}), flush=True)


def _down(tool: str, way: str, folder: str, play: str) -> dict[str, Any]:
    with _deaf_port() as deaf:
        port = deaf if way == "never answers" else _closed_port()
        command = [*_COMMAND, "--tool", tool, "--without", f"http://127.0.0.1:{port}"]
        command += ["--play", play]
        with subprocess.Popen(
            command,
            cwd=folder,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            began_s = time.monotonic()
            try:
                process.wait(_LONGEST_END_S if play != "handler" else 0)
            except subprocess.TimeoutExpired:  # some tracers try again for minutes
                process.kill()
                return {**json.loads(line), "end": f"over {_LONGEST_END_S:.0f}"}
            return {**json.loads(line), "end": f"{time.monotonic() - began_s:.1f}"}


_ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
_COMMAND = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.delivered"]


def main() -> None:
    """Print the table of all tools, or of one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", choices=TOOLS)
    parser.add_argument("--json", action="store_true", help="for its own use")
    parser.add_argument("--without", help="for its own use")
    parser.add_argument("--play", choices=_PLAYS, help="for its own use")
    options = parser.parse_args()
    if options.without:
        _play_without_server(options.tool, options.without, options.play)
        return
    if options.json:
        print(json.dumps(_deliver(options.tool)))
        return
    tools = [options.tool] if options.tool else TOOLS
    with TemporaryDirectory() as folder:
        _print_delivered(tools, folder)
        _print_down([tool for tool in tools if tool != "opentelemetry"], folder)


def _print_delivered(tools: Sequence[str], folder: str) -> None:
    print("tool           one run  16 at once  on their own trace  late verdict: changed, new ids")
    for tool in tools:
        command = [*_COMMAND, "--tool", tool, "--json"]
        done = subprocess.run(
            command, cwd=folder, env=_ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True
        )
        got = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{tool:<14} {got['one']:>7}  {got['received'] - got['one']:>10}  "
            f"{got['on_own_trace']:>12} of {got['sent']}  {got['changed']:>20}, {got['new_ids']}",
            flush=True,
        )


def _print_down(tools: Sequence[str], folder: str) -> None:
    """Print what becomes of the scores where no server answers."""
    print(
        "\n                             one run, ms: tracer, handler, receiver"
        " | sent  failed  waiting | process ends after, s: tracer, receiver"
    )
    for tool in tools:
        for way in _DOWN:
            tracer, handler, got = (_down(tool, way, folder, play) for play in _PLAYS)
            waiting = _RUNS_DOWN - sum(got[name] for name in _COUNTS)
            print(
                f"{tool:<14} {way:<13} {tracer['run_ms']:>8.1f}  {handler['run_ms']:>6.1f}  "
                f"{got['run_ms']:>6.1f} | {got['scores_sent']:>4}  {got['scores_failed']:>6}  "
                f"{waiting:>7} | {tracer['end']:>8}, {got['end']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
