"""The command `report`: a page to review runs in a browser, as a file or served."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.label import Labelling
from kp_langchain.cli.options import (
    Archive,
    Database,
    new_app,
    open_archive,
    open_store,
    takes_filters,
)
from kp_langchain.cli.output import STDIO, say, text_output
from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.report.collect import ReportData
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

app = new_app()


@app.command()
@takes_filters("domain", "since", "until", "search", "where")
def report(
    filters: dict[str, Any],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page to this file.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page on this machine; it stores verdicts.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="N",
            help="With --serve: the port; any that is free if not set.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most so many runs, the newest.")
    ] = 5000,
    archive: Archive = None,
    database: Database = None,
) -> None:
    """Review runs in a browser: what each domain keeps and why, each run, and your verdicts.

    --html writes one file that loads nothing and needs no server. It holds the redacted texts of
    the runs, so only you may read it. Verdicts that you give in it are downloaded as a file for
    `label import`. An earlier report is replaced, any other file is not.

    --serve stores each verdict at once. Only browsers on this machine reach it, with the address
    that it prints. Ctrl-C or SIGTERM ends it.
    """
    if (html is None) is not serve:
        raise typer.BadParameter("give one of --html FILE and --serve")
    if html is not None and (str(html) == STDIO or html.name == ""):
        raise typer.BadParameter("--html takes a file, such as runs.html")
    if port is not None and not serve:
        raise typer.BadParameter("--port belongs to --serve")
    if archive is not None and html is None:
        raise typer.BadParameter("--archive is for --html: there is no store for verdicts")

    from kp_langchain.report.collect import collect
    from kp_langchain.report.page import check_target

    if archive is not None and html is not None:
        check_target(html)
        results = open_archive(archive, filters, database)
        with results.newest(limit) as store:
            data = collect(store, {}, limit=limit)
        data.store, data.total = results.name, count_text(results.count(), "run")
        _write(data, html, has_store=False)
        return
    with open_store(database) as store:
        if html is not None:
            check_target(html)
            _write(collect(store, filters, limit=limit), html)  # type: ignore[arg-type]
        else:
            _serve(store, filters, limit, port or 0)


def _write(data: ReportData, path: Path, *, has_store: bool = True) -> None:
    from kp_langchain.report.page import check_target, render

    page = render(data)
    check_target(path)
    with text_output(str(path)) as write:
        write(page)
    say(f"Wrote {_number(data)} to {path.absolute()} ({len(page) / 1e6:.1f} MB).")
    _say_damage(data)
    texts = "the redacted texts" if has_store else "the texts"  # traces are taken as they are
    say(f"It holds {texts} of these runs. Only you may read it; mind whom you send it.")
    if data.private_runs:
        say(f"{data.private_runs} of them keep identifiers: their privacy level is private.")
    if data.runs and has_store:
        say("Verdicts given in it: download them there, then kp-langchain label import FILE")


def _serve(store: TraceStore, filters: dict[str, Any], limit: int, port: int) -> None:
    from kp_langchain.report.collect import collect, read_record
    from kp_langchain.report.page import render
    from kp_langchain.report.server import ReportServer

    labelling = Labelling(store)

    def read() -> ReportData:
        return collect(store, filters, limit=limit)  # type: ignore[arg-type]

    def make_page() -> str:
        return render(read(), stores_verdicts=True)

    def store_verdict(trace_id: str, verdict: Verdict) -> list[dict[str, Any]]:
        changes = labelling.store(trace_id, verdict)
        ids = [id_ for change in changes for id_ in (change.trace_id, *change.replaces)]
        records = (read_record(store, id_) for id_ in dict.fromkeys(ids))
        return [record for record in records if record is not None]

    data = read()
    with ReportServer(make_page, store_verdict, port=port) as server:
        say(f"Serving {_number(data)} at {server.address}")
        _say_damage(data)
        say("Whoever has this address can read them from this machine. Ctrl-C ends it.")
        sys.stdout.flush()
        # A supervisor sends SIGTERM, and what runs in the background of a script ignores Ctrl-C.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
        finally:
            signal.signal(signal.SIGTERM, before)
    labelling.conclude()


def _number(data: ReportData) -> str:
    return f"{len(data.runs):,} of {data.total}"


def _say_damage(data: ReportData) -> None:
    if data.damaged_traces:
        say(f"{data.damaged_traces} stored traces cannot be read; their runs have no steps there.")
