"""Pictures of the page for the guides: `python -m tests.report.screenshot [FOLDER]`.

Makes up runs of several domains, scores them, and writes `report-light.png` and `report-dark.png`
of the page that shows them. It needs Playwright and Chromium, as the tests of the page do.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kp_langchain import Scorer, Verdict
from kp_langchain.report.collect import collect
from kp_langchain.report.page import render
from kp_langchain.scoring import Agreement
from kp_langchain.scoring.evidence import VETO_FLAGS
from tests.cli.support_desk import Words
from tests.report.conftest import chromium
from tests.report.pages import Store, step

IMAGES = Path(__file__).parents[2] / "examples/guides/images"
END = datetime(2026, 11, 27, 17, tzinfo=UTC)
DAYS = 40
_SIZE = {"width": 1280, "height": 1080}


@dataclass(frozen=True)
class Desk:
    """What the agents of a domain are asked, and the tools that they have.

    Attributes:
        tasks: What they are asked; `{}` stands for one of `about`.
        about: What they are asked about.
        tools: Their tools.
        threshold: From which worth on a run is kept.
        skill: How often they are right, 0 to 1.
    """

    tasks: Sequence[str]
    about: Sequence[str]
    tools: Sequence[str]
    threshold: float
    skill: float


DESKS = {
    "support": Desk(
        ["Refund the order of {}", "Why was {} charged twice?", "Move the delivery of {}"],
        ["customer 4107", "the bakery in Lyon", "customer 5512", "Harbour Books", "customer 6120"],
        ["orders", "payments", "mail"], 0.54, 0.8,
    ),
    "finance": Desk(
        ["Reconcile the invoices of {}", "Forecast the cash of {}", "Explain the costs of {}"],
        ["Q3", "the Porto branch", "the retail unit", "the lease portfolio"],
        ["ledger", "calculator", "search"], 0.53, 0.7,
    ),
    "travel": Desk(
        ["Book a flight to {}", "Find a quiet hotel in {}", "Plan two days in {} with a child"],
        ["Lisbon", "Graz", "Osaka", "Tromsø", "Oaxaca"], ["flights", "hotels", "weather"],
        0.54, 0.6,
    ),
    "code": Desk(
        ["Fix the failing test of {}", "Why does {} leak memory?", "Add a timeout to {}"],
        ["the importer", "the session cache", "the rate limiter"], ["grep", "run_tests"],
        0.52, 0.75,
    ),
    "research": Desk(
        ["Summarise what is known about {}", "Find three sources on {}"],
        ["heat pumps in old houses", "sleep and memory", "soil carbon", "tidal power"],
        ["search", "fetch", "notes"], 0.53, 0.65,
    ),
}  # fmt: skip


def add_runs(store: Store, number: int) -> None:
    """Add runs that are spread over 40 days; the same ones each time."""
    draw = random.Random(7)
    weights = [1 / (at + 2) for at in range(len(DESKS))]
    times = sorted(END - timedelta(days=DAYS * draw.random()) for _ in range(number))
    for created_at in times:
        domain = draw.choices(list(DESKS), weights)[0]
        desk = DESKS[domain]
        about, is_right = draw.choice(desk.about), draw.random() < desk.skill
        amount, sure = f"{draw.randint(20, 900)}.{draw.randint(10, 99)}", draw.random() < 0.6
        stated = amount if is_right else f"{draw.randint(20, 900)}.50"
        agrees = draw.betavariate(*((3, 2) if is_right else (2, 4)))
        is_flagged = draw.random() < (0.05 if is_right else 0.4)
        veto = draw.choice(list(VETO_FLAGS)) if is_flagged else None
        verdict = Verdict(success=is_right) if draw.random() < 0.06 else None
        store.add(
            draw.choice(desk.tasks).format(about),
            list(_steps(draw, desk, about, amount)),
            domain=domain,
            threshold=desk.threshold,
            result=f"{'Done' if sure else 'I am not certain, but it seems done'}: {stated} EUR.",
            verdict=verdict,
            created_at=created_at,
            success=draw.random() < 0.9,
            agreement=Agreement(agrees, 5, round(5 * agrees)),
            veto=veto,
            confidence=draw.uniform(0.75, 0.98) if sure else draw.uniform(0.3, 0.7),
        )


def _steps(draw: random.Random, desk: Desk, about: str, amount: str) -> Iterator[dict[str, Any]]:
    new = [f"item{draw.randint(1, 10_000)}" for _ in range(draw.choice((0, 4, 12, 30, 60)))]
    yield step("thought", f"What do we have on {about}? {' '.join(new)}")
    for tool in draw.choices(desk.tools, k=draw.choice((1, 1, 2, 3, 4, 5))):
        yield step("tool_call", "", tool, input={"query": about, "page": draw.randint(1, 9)})
        if draw.random() < 0.12:
            yield step("error_recovery", "timeout after 10 s", tool)
            continue
        latency_ms = round(draw.uniform(20, 900), 1)
        yield step("observation", f"{about}: {amount} EUR, open", tool, latency_ms=latency_ms)
    yield step("thought", f"{about} is settled at {amount} EUR.")


def sample_page(folder: Path, number: int) -> Path:
    """Write a page of made-up runs into a folder, and return it."""
    store = Store(folder / "runs.db", Scorer(embedder=Words()))
    add_runs(store, number)
    page = folder / "page.html"
    page.write_text(render(collect(store.traces, {}, limit=number)), encoding="utf-8")
    store.traces.close()
    return page


def main(folder: Path) -> None:
    """Write the pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, chromium() as browser:
        address = sample_page(Path(work), 480).as_uri()
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=_SIZE, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            page.get_by_role("button", name="finance", exact=True).click()
            page.mouse.move(0, 0)
            page.screenshot(path=folder / f"report-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
