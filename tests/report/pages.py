"""Runs that are made up but really scored, and pages that are watched."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from kp_langchain import ReasoningTrace, Scorer, TraceStore
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.report.data import collect
from kp_langchain.report.page import render
from kp_langchain.store import Verdict

PATIENCE_MS = 120_000  # which only a deadlock reaches


def step(kind: str, content: str = "", tool: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "content": content,
        **({"tool": {"name": tool}} if tool else {}),
        **fields,
    }


def searches(word: str, *tools: str) -> list[dict[str, Any]]:
    """A thought, a call and an answer of each tool, and the end."""
    steps = [step("thought", f"I look for {word}.")]
    for tool in tools or ("search",):
        steps += [
            step("tool_call", "", tool, input={"query": word}),
            step("observation", f"{tool} knows {word}", tool, latency_ms=12.5),
        ]
    return [*steps, step("thought", f"It is {word}.")]


class Store:
    """A store in `runs.db` of the test's folder."""

    def __init__(self) -> None:
        self.path = Path("runs.db").absolute()
        self.traces = TraceStore(self.path)
        self._scorer = Scorer(embedder=None)

    def add(
        self,
        objective: str = "What is the answer?",
        steps: list[dict[str, Any]] | None = None,
        *,
        domain: str = "finance",
        threshold: float = 0.55,
        result: str = "done",
        verdict: Verdict | None = None,
        **fields: Any,
    ) -> str:
        """Add a run, the newest so far; return its id."""
        numbered = [one | {"step_id": at} for at, one in enumerate(steps or searches("it"))]
        trace = ReasoningTrace.model_validate(
            {
                "metadata": {"task_domain": domain, "success": True},
                "task": {"objective": objective},
                "steps": numbered,
                "outcome": {"result_summary": result, "confidence": 0.8},
            }
        )
        breakdown = self._scorer.score(trace)
        trace.metadata.quality_score = breakdown.total
        scored = ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decide(breakdown.total, threshold),
            threshold=threshold,
            run_id=uuid.uuid4(),
            verdict=verdict,
            **fields,
        )
        self.traces.add(scored)
        return trace.id

    def page(self, limit: int = 5000) -> str:
        return render(collect(self.traces, {}, limit=limit, has_registry=False))


class Watched:
    """A page of the browser, and everything that it must not do.

    Args:
        page: The page.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Any) -> None:
        if dialog.type == "beforeunload":
            dialog.accept()
            return
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        return self.page


def shown(page: Any) -> list[str]:
    """The objectives in the table, from above."""
    return list(page.locator("[data-id]").all_text_contents())


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
