"""Runs that are made up but really scored, and pages that are watched."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import signal
import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from kp_langchain import ReasoningTrace, Scorer, TraceStore, Verdict
from kp_langchain.calibration.agreement import agreement_scale
from kp_langchain.calibration.model import confidence_by_agreement
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.gate.run import ShownTrace
from kp_langchain.recording.windows import BY_AGREEMENT
from kp_langchain.scoring import Agreement
from kp_langchain.store.recall_tasks import TaskVector
from tests import programs
from tests.commands import PROGRAM, cli

PATIENCE_MS = 120_000  # which only a deadlock reaches
HOSTILE = (
    "<script>alert(1)</script></script><!--<script>--><img src=x onerror=alert(1)>"
    "<style>*{display:none}</style>javascript:alert(1) data:text/html,<b>"
    "{{ 7 * 7 }}{% raw %}${7*7}`\\u003cscript\\u003e&lt;b&gt;\"'"
    "\x1b[2J\x1b]8;;http://example.com\x07 \x00 \u202egnp.exe\u202c \u2066x\u2069 \U000e0041"
    " \ufffe \u2028"
)


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
    """A store of runs.

    Args:
        path: Its file; by default `runs.db` in the test's folder.
        scorer: Scores the runs; by default one without novelty.
    """

    def __init__(self, path: Path | None = None, scorer: Scorer | None = None) -> None:
        self.path = path or Path("runs.db").absolute()
        self.traces = TraceStore(self.path)
        self._scorer = scorer or Scorer(embedder=None)

    def add(
        self,
        objective: str = "What is the answer?",
        steps: list[dict[str, Any]] | None = None,
        *,
        domain: str = "finance",
        threshold: float = 0.55,
        result: str = "done",
        verdict: Verdict | None = None,
        created_at: datetime | None = None,
        success: bool = True,
        confidence: float = 0.8,
        agreement: Agreement | None = None,
        **fields: Any,
    ) -> str:
        """Add a run, by default the newest so far; return its id.

        With an agreement, its domain is gated by worth.
        """
        began = {} if created_at is None else {"created_at": created_at}
        numbered = [one | {"step_id": at} for at, one in enumerate(steps or searches("it"))]
        trace = ReasoningTrace.model_validate(
            {
                "metadata": {"task_domain": domain, "success": success, **began},
                "task": {"objective": objective},
                "steps": numbered,
                "outcome": {"result_summary": result, "confidence": confidence},
            }
        )
        breakdown = replace(self._scorer.evaluate(trace), agreement=agreement)
        trace.metadata.quality_score = value = breakdown.total
        if fields.get("veto"):
            breakdown = replace(breakdown, flags=(fields["veto"],))
        if agreement is not None:
            sure = confidence_by_agreement(agreement.evidence, agreement_scale([]))
            breakdown = breakdown.with_worth(sure, BY_AGREEMENT)
            fields["gate"], value = "worth", breakdown.worth.value if breakdown.worth else 0.0
        decision = "twin" if "twin_of" in fields else decide(value, threshold)
        scored = ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision="below_threshold" if fields.get("veto") else decision,
            threshold=threshold,
            run_id=uuid.uuid4(),
            verdict=verdict,
            **fields,
        )
        self.traces.add(scored)
        return trace.id

    def add_shown(self, shown: str, *, success: bool, held_out: bool = False, **fields: Any) -> str:
        """Add a run that was shown a trace, with a verdict; return its id."""
        example = ShownTrace(shown, 1, 0.834, held_out, is_drawn=True)
        trace_id = self.add("a later run", shown=(example,), threshold=0.9, **fields)
        self.traces.report_outcome(trace_id, success=success)
        return trace_id

    def note_planted(self, trace_id: str, kinds: str) -> None:
        """Note that a trace has what looks like planted instructions."""
        entry = TaskVector(None, kinds)
        self.traces.recall_tasks.write({trace_id: entry}, EmbedderIdentity("words", "1"), 1)

    def run_sql(self, *statements: tuple[Any, ...]) -> None:
        """Change the database by hand: each a statement and its values."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement, *values in statements:
                connection.execute(statement, values)

    def page(self, *words: str) -> str:
        """Write the page by the command, with more words, and return it."""
        done = cli("report", "--html", "page.html", "--database", str(self.path), *words)
        assert done.returncode == 0, done.stderr
        return Path("page.html").read_text(encoding="utf-8")

    def read(self) -> tuple[dict[str, Any], list[Any]]:
        """What the page has of the runs, and the trace of each."""
        blocks = [
            json.loads(gzip.decompress(base64.b64decode(text)))
            for text in re.findall(
                r'<script type="application/json" id=[^>]*>"(.*?)"<', self.page()
            )
        ]
        return blocks[0], [trace for block in blocks[1:] for trace in block]

    def records(self) -> dict[str, dict[str, Any]]:
        """What the page has of each run, by the id of its trace."""
        return {run["id"]: run for run in self.read()[0]["runs"]}


class Served:
    """The page as `report --serve` serves it, in a process of its own.

    Args:
        database: The database.
    """

    def __init__(self, database: Path) -> None:
        words = ("-c", PROGRAM, "report", "--serve", "--database", str(database))
        self._output = Path("served.txt").absolute()
        with self._output.open("wb") as out:
            self._program = programs.start(*words, stdout=out, stderr=out)
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while "ends it" not in self.printed:
            assert self._program.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.01)
        self.address = re.findall(r"http://\S+", self.printed)[0]
        self.host, self.token = self.address.removeprefix("http://").rstrip("/").split("/")

    @property
    def printed(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def ask(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, str, Any]:
        """Return status, content and headers of a reply; `_` in a header's name stands for `-`."""
        connection = http.client.HTTPConnection(self.host, timeout=600)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, names)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text, reply.headers

    def send(self, body: str, **headers: str) -> tuple[int, Any]:
        """Send a verdict as the page does; return the status and what is answered."""
        own = {"Origin": f"http://{self.host}", "Content_Type": "application/json"}
        status, text, _ = self.ask("POST", f"/{self.token}/verdicts", body, **{**own, **headers})
        return status, json.loads(text)

    def end(self, number: int = signal.SIGINT) -> int:
        """End it by a signal; return its exit status."""
        self._program.send_signal(number)
        return self._program.wait()


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
