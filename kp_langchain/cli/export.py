"""The command `export`: writes traces as JSON lines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kp_langchain.cli.options import Database, new_app, open_store, takes_filters
from kp_langchain.cli.output import STDIO, counted, say_json, text_output, warn

app = new_app()


@app.command()
@takes_filters()
def export(
    filters: dict[str, Any],
    every: Annotated[
        bool,
        typer.Option("--all", help="Also runs that did not pass, and traces that expire."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the newest.")] = None,
    with_identifiers: Annotated[
        bool,
        typer.Option(
            "--with-identifiers",
            help="Also traces of the privacy level private, which keep identifiers.",
        ),
    ] = False,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file; - for stdout."),
    ] = STDIO,
    database: Database = None,
) -> None:
    """Write traces that were kept as JSON, one a line, the newest first.

    Without --all, these are the traces of runs that passed. The store has only redacted text, so
    nothing else is written. Traces of the privacy level private keep identifiers such as
    addresses, and are left out without --with-identifiers.

    A line has the namespace of its run, if it has one, as kp_namespace. A file of --output is
    replaced in one step, and only you may read it.
    """
    if not every:
        filters.setdefault("decision", "kept")
    written = private = 0
    with open_store(database) as store, text_output(output) as write:
        for trace, namespace in store.traces_with_namespace(with_expiring=every, **filters):
            if trace.metadata.privacy_level == "private" and not with_identifiers:
                private += 1
                continue
            of_run = {} if namespace is None else {"kp_namespace": namespace}
            say_json(of_run, trace.model_dump(mode="json"), write=write)
            written += 1
            if written == limit:
                break
    to = "" if output == STDIO else f" to {output}"
    left_out = f" Left out {private} that keep identifiers (--with-identifiers)." if private else ""
    warn(f"Exported {counted(written, 'trace')}{to}.{left_out}")
