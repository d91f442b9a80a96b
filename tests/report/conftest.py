"""A store, the served page, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report.pages import PATIENCE_MS, Served, Store, Watched

_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip


@pytest.fixture
def store(fresh_settings: None) -> Iterator[Store]:
    made = Store()
    yield made
    made.traces.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, which reaches no network."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium as the program `chromium`, or its path in CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=_ARGUMENTS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


# Not of the session: while Playwright is there, its event loop counts as running in this thread,
# so that `asyncio.run` in a test of another file would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as program:
        yield program


@pytest.fixture
def open_in_browser(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Opens a page, given as text or by its address; at the end, it has done nothing wrong."""
    opened: list[Watched] = []
    contexts = []

    def open_page(page: str, **options: Any) -> Watched:
        options.setdefault("viewport", {"width": 1200, "height": 900})
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        watched = Watched(context.new_page())
        opened.append(watched)
        if page.startswith("http://"):
            watched.go(page)
        else:
            file = tmp_path / f"page{len(opened)}.html"
            file.write_text(page, encoding="utf-8")
            watched.go(file.as_uri())
        return watched

    yield open_page
    for context in contexts:
        context.close()
    for one in opened:
        assert one.complaints == []


@pytest.fixture
def serve(store: Store) -> Iterator[Callable[[], Served]]:
    """Serves the page by the command, until the test ends."""
    started: list[Served] = []

    def start() -> Served:
        started.append(Served(store.path))
        return started[-1]

    yield start
    for one in started:
        one.end()
