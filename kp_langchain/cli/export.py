"""The command `export`: writes traces as JSONL, or as examples for a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.options import Database, new_app, open_store, takes_filters
from kp_langchain.cli.output import STDIO, counted, json_line, takes_unicode, text_output, warn
from kp_langchain.errors import KPError
from kp_langchain.text import printable

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore

_FEW_SHOT_CHARS = 20_000
_EXAMPLE_CHARS = 75  # no example is shorter
_NAMESPACES_SHOWN = 5

app = new_app()


@app.command()
@takes_filters()
def export(
    filters: dict[str, Any],
    export_format: Annotated[
        Literal["traces", "few-shot"],
        typer.Option(
            "--format", help="JSON, one trace a line; or text with examples for a prompt."
        ),
    ] = "traces",
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also runs that did not pass or failed, and traces that expire."
        ),
    ] = False,
    with_identifiers: Annotated[
        bool,
        typer.Option(
            "--with-identifiers",
            help="Also traces of the privacy level private, which keep identifiers.",
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Export at most this many.")] = None,
    max_chars: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"With few-shot: at most this many characters; {_FEW_SHOT_CHARS} if not set.",
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces", help="With few-shot: also if the traces are of several namespaces."
        ),
    ] = False,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file; - for stdout."),
    ] = STDIO,
    database: Database = None,
) -> None:
    """Write traces that were kept, the newest first.

    Without --all, these are runs that passed; as examples for a prompt, those that succeeded. The
    store has only redacted text, so nothing else is written. Traces of the privacy level private
    keep identifiers such as addresses, and are left out without --with-identifiers. Examples are
    shortened; what tools returned in them is text of others.

    A line of JSON has the namespace of its run, if it has one, as kp_namespace. Traces of several
    namespaces become examples in one text only with --all-namespaces; choose one with
    --where namespace=NAME.

    A file of --output is replaced in one step, and only you may read it.
    """
    as_examples = export_format == "few-shot"
    if max_chars is not None and not as_examples:
        raise typer.BadParameter("--max-chars belongs to --format few-shot")
    max_chars = max_chars or _FEW_SHOT_CHARS
    if not every:
        filters.setdefault("decision", "kept")
    private = 0

    def chosen(store: TraceStore) -> Iterator[tuple[ReasoningTrace, str | None]]:
        nonlocal private
        for trace, namespace in store.traces_with_namespace(with_expiring=every, **filters):
            if as_examples and not every and not trace.metadata.success:
                continue
            if trace.metadata.privacy_level == "private" and not with_identifiers:
                private += 1
                continue
            yield trace, namespace

    with open_store(database) as store, text_output(output) as write:
        traces = islice(chosen(store), limit)
        if as_examples:
            some = list(islice(traces, max_chars // _EXAMPLE_CHARS + 1))
            namespaces = _list_namespaces(namespace for _, namespace in some)
            if len(namespaces) > 1 and not all_namespaces:
                raise KPError(
                    f"the runs are of several namespaces ({', '.join(namespaces)}), and one text "
                    "would show each what the others did; choose one with --where namespace=NAME, "
                    "or give --all-namespaces"
                )
            text, written = _few_shot(store, [trace for trace, _ in some], max_chars)
            if some and not text:
                raise KPError(f"no example fits into {max_chars} characters; raise --max-chars")
            write(text)
        else:
            is_unicode = output != STDIO or takes_unicode(sys.stdout)
            namespaces, written = [], 0
            for trace, namespace in traces:
                values = trace.model_dump(mode="json")
                if namespace is not None:
                    values["kp_namespace"] = namespace
                write(f"{json_line(values, is_unicode=is_unicode)}\n")
                written += 1
    to = "" if output == STDIO else f" to {output}"
    line = f"Exported {counted(written, 'example' if as_examples else 'trace')}{to}."
    if private:
        line += f" Left out {private} that keep identifiers (--with-identifiers)."
    if namespaces and written:
        noun = "namespace" if len(namespaces) == 1 else "namespaces"
        line += f" They are for runs of the {noun} {', '.join(namespaces)} alone."
    warn(line)


def _list_namespaces(namespaces: Iterable[str | None]) -> list[str]:
    """Return the namespaces for a message; after the first ones, only how many more there are."""
    names = [printable(one) for one in dict.fromkeys(namespaces) if one is not None]
    more = len(names) - _NAMESPACES_SHOWN
    return [*names[:_NAMESPACES_SHOWN], f"{more} more"] if more > 0 else names


def _few_shot(
    store: TraceStore, traces: Sequence[ReasoningTrace], max_chars: int
) -> tuple[str, int]:
    """Return examples in at most `max_chars` characters with a line feed, and how many they are."""
    from kp_langchain.recall.few_shot import compose_few_shot
    from kp_langchain.verdict import counting

    verdicts = store.verdicts_by_trace([trace.id for trace in traces])
    newest = [counting(verdicts.get(one.id, ())) for one in traces]
    few_shot = compose_few_shot(
        traces,
        trust=["own" if one is None or one.success is None else "verdict" for one in newest],
        max_tokens=max_chars - 1,
        with_outputs=True,
        count=len,
    )
    return f"{few_shot.text}\n" if few_shot.text else "", len(few_shot.shown)
