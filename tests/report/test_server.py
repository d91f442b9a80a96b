"""The served page: it stores verdicts, and answers nobody but itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kp_langchain.errors import StoreError
from kp_langchain.report.data import collect, read_record
from kp_langchain.report.page import render
from kp_langchain.report.server import ReportServer
from kp_langchain.verdict import Verdict
from tests.commands import PROGRAM, ROOT
from tests.report.pages import Store, Watched, searches


@pytest.fixture
def server(store: Store) -> Iterator[ReportServer]:
    def page() -> str:
        data = collect(store.traces, {}, limit=100, has_registry=False)
        return render(data, stores_verdicts=True)

    def store_verdict(trace_id: str, verdict: Verdict) -> list[dict[str, Any]]:
        store.traces.report_outcome(
            trace_id, success=verdict.success, note=verdict.note, source=verdict.source
        )
        record = read_record(store.traces, trace_id, has_registry=False)
        assert record is not None
        return [record]

    with ReportServer(page, store_verdict) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_verdict_is_stored_and_the_row_follows(
    store: Store, server: ReportServer, open_in_browser: Callable[..., Watched]
) -> None:
    run = store.add("buy bread", searches("bread", "search", "mail"), threshold=0.5)
    store.add("sell apples", threshold=0.1)
    page = open_in_browser(server.address).page
    row = page.locator("tbody tr", has_text="buy bread")
    assert row.locator(".decision").text_content() == "kept"
    page.locator("[data-id]").last.click()
    page.fill("#note", "it was stale")
    page.locator("#drawer-title").focus()
    page.keyboard.press("n")
    page.get_by_text("Failure stored for run").wait_for()
    stored = store.traces.get(run)
    assert stored is not None
    assert (stored.success, stored.decision) == (False, "below_threshold")
    (verdict,) = store.traces.verdicts(run)
    assert (verdict.success, verdict.note, verdict.source) == (False, "it was stale", "label")
    assert "it was stale" in page.text_content("#inside")
    page.keyboard.press("Escape")
    assert row.locator(".decision").text_content() == "below threshold"
    assert f"{stored.score:.3f}" in row.text_content()
    assert page.text_content("#answered") == "1 verdict stored"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.select_option("#verdict", "false")
    assert page.locator("[data-id]").all_text_contents() == ["buy bread"]


def test_of_two_tabs_the_newest_verdict_counts(
    store: Store, server: ReportServer, open_in_browser: Callable[..., Watched]
) -> None:
    run = store.add("buy bread")
    tabs = [open_in_browser(server.address).page for _ in range(2)]
    for page, key, word in zip(tabs, "yn", ("Success", "Failure"), strict=True):
        page.locator("[data-id]").click()
        page.keyboard.press(key)
        page.get_by_text(f"{word} stored for run").wait_for()
    assert [verdict.success for verdict in store.traces.verdicts(run)] == [True, False]
    tabs[0].reload()
    tabs[0].wait_for_selector("html[data-ready]")
    tabs[0].select_option("#verdict", "false")
    assert tabs[0].locator("[data-id]").all_text_contents() == ["buy bread"]


def test_a_verdict_that_cannot_be_stored_is_reported(
    store: Store, server: ReportServer, open_in_browser: Callable[..., Watched]
) -> None:
    def fail(trace_id: str, verdict: Verdict) -> list[dict[str, Any]]:
        raise StoreError("the disk is full")

    store.add("buy bread")
    watched = open_in_browser(server.address)
    watched.page.locator("[data-id]").click()
    server._store_verdict = fail
    watched.page.keyboard.press("y")
    watched.page.get_by_text("Not stored: the disk is full").wait_for()
    assert not watched.page.is_visible("#answers")
    assert "500" in watched.complaints.pop()


def ask(
    server: ReportServer, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text, reply.headers


def test_wrong_token_host_or_origin_is_refused(store: Store, server: ReportServer) -> None:
    trace_id = store.add("buy bread")
    page, verdicts = f"/{server.token}/", f"/{server.token}/verdicts"
    own = f"127.0.0.1:{server.server_port}"
    body = json.dumps({"trace_id": trace_id, "success": True})
    right = {"Origin": f"http://{own}", "Content_Type": "application/json"}

    for path in ("/", "/verdicts", f"/{server.token[:-1]}/", "//", "/x/", f"/x/{server.token}/"):
        assert ask(server, "GET", path)[0] == 403, path
    for host in ("example.com", f"example.com:{server.server_port}", "127.0.0.1", ""):
        assert ask(server, "GET", page, Host=host)[0] == 403, host
    assert ask(server, "GET", page, Origin="http://example.com")[0] == 403
    for origin in ("http://example.com", "null", f"https://{own}", "http://127.0.0.1:1"):
        headers = right | {"Origin": origin}
        assert ask(server, "POST", verdicts, body, **headers)[0] == 403, origin
    assert ask(server, "POST", verdicts, body, Content_Type="application/json")[0] == 403
    assert ask(server, "POST", "/wrong/verdicts", body, **right)[0] == 403
    assert ask(server, "POST", page, body, **right)[0] == 404
    assert ask(server, "GET", verdicts)[0] == 404
    assert ask(server, "OPTIONS", verdicts, **right)[0] == 501
    assert store.traces.verdicts(trace_id) == []

    status, text, headers = ask(server, "GET", page, Host=f"localhost:{server.server_port}")
    assert status == 200
    assert "connect-src &#39;self&#39;" in text
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Set-Cookie" not in headers
    assert ask(server, "POST", verdicts, body, **right)[0] == 200
    assert len(store.traces.verdicts(trace_id)) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("no json", 400),
        ("[]", 400),
        ('{"trace_id": "x"}', 400),
        ('{"trace_id": 7, "success": true}', 400),
        ('{"trace_id": "", "success": true}', 400),
        ('{"trace_id": "x", "success": "yes"}', 400),
        ('{"trace_id": "x", "success": true, "note": 7}', 400),
        ('{"trace_id": "nobody", "success": true}', 404),
        ("[" * 60_000, 400),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_body_that_is_no_verdict_is_refused(
    store: Store, server: ReportServer, body: str, status: int
) -> None:
    path, origin = f"/{server.token}/verdicts", f"http://127.0.0.1:{server.server_port}"
    answer = ask(server, "POST", path, body, Content_Type="application/json", Origin=origin)
    assert answer[0] == status
    assert json.loads(answer[1])["error"]
    assert ask(server, "POST", path, body, Content_Type="text/plain", Origin=origin)[0] == 415


@pytest.mark.parametrize("length", ["70000", "-1", "much", "1" * 5000])
def test_a_length_that_cannot_be_right_is_refused(
    store: Store, server: ReportServer, length: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    connection.putrequest("POST", f"/{server.token}/verdicts")
    connection.putheader("Origin", f"http://127.0.0.1:{server.server_port}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", length)
    connection.endheaders()
    assert connection.getresponse().status in (411, 413)
    connection.close()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(store: Store, ending: signal.Signals) -> None:
    trace_id = store.add("buy bread")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, "report", "--serve",
         "--database", str(store.path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # What runs in the background of a script ignores SIGINT, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Serving 1 of 1 run at http://127.0.0.1:")
            host, token = line.split()[-1].removeprefix("http://").rstrip("/").split("/")
            connection = http.client.HTTPConnection(host, timeout=600)
            connection.request(
                "POST",
                f"/{token}/verdicts",
                json.dumps({"trace_id": trace_id, "success": False, "note": None}),
                {"Origin": f"http://{host}", "Content-Type": "application/json"},
            )
            (record,) = json.loads(connection.getresponse().read())["runs"]
            connection.close()
            assert record["success"] is False
            process.send_signal(ending)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "Labelled 1" in out
    assert "Traceback" not in err
