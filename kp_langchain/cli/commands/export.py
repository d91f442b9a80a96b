"""The command `export`: writes traces as JSONL, or as examples for a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.output import json_line, say, takes_unicode
from kp_langchain.cli.run_filter_options import (
    Decision,
    Domain,
    MinScore,
    NearDuplicates,
    RecoveredErrors,
    Rule,
    Search,
    Session,
    Since,
    Tag,
    Tool,
    Until,
    run_filters,
)
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.cli.text_output import STDOUT, text_output
from kp_langchain.cli.where_option import Where
from kp_langchain.errors import KPError
from kp_langchain.printable import printable
from kp_langchain.recall.few_shot import FewShot, compose_few_shot

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore, Verdict

_FEW_SHOT_CHARS = 20_000
_EXAMPLE_CHARS = 75  # no example is shorter
_NAMESPACES_SHOWN = 5

Format = Annotated[
    Literal["traces", "few-shot"],
    typer.Option("--format", help="JSON, one trace a line; or text with examples for a prompt."),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; - for stdout.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Export at most this many.")]
MaxChars = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"With few-shot: at most this many characters; {_FEW_SHOT_CHARS} if not set."
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option(
        "--all-namespaces", help="With few-shot: also if the traces are of several namespaces."
    ),
]
Every = Annotated[
    bool,
    typer.Option("--all", help="Also runs that did not pass or failed, and traces that expire."),
]
WithIdentifiers = Annotated[
    bool,
    typer.Option(
        "--with-identifiers",
        help="Also traces of the privacy level private, which keep identifiers.",
    ),
]


def export(
    export_format: Format = "traces",
    domain: Domain = None,
    decision: Decision = None,
    min_score: MinScore = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    rule: Rule = None,
    tool: Tool = None,
    recovered_errors: RecoveredErrors = False,
    near_duplicates: NearDuplicates = False,
    session: Session = None,
    tag: Tag = None,
    where: Where = None,
    every: Every = False,
    with_identifiers: WithIdentifiers = False,
    limit: Limit = None,
    max_chars: MaxChars = None,
    all_namespaces: AllNamespaces = False,
    output: Output = STDOUT,
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
    if max_chars is not None and export_format != "few-shot":
        raise typer.BadParameter("--max-chars belongs to --format few-shot")
    filters = run_filters(
        domain=domain,
        decision=decision if decision or every else "kept",
        min_score=min_score,
        since=since,
        until=until,
        search=search,
        rule=rule,
        tool=tool,
        recovered_errors=recovered_errors,
        near_duplicates=near_duplicates,
        session=session,
        tag=tag,
        where=where,
    )
    namespaces: list[str] = []
    with open_store(database) as store, text_output(output) as write:
        choice = _Choice(
            with_identifiers=with_identifiers,
            only_successes=export_format == "few-shot" and not every,
        )
        stored = store.traces_with_namespace(with_expiring=every, **filters)
        traces = islice(choice.of(stored), limit)
        if export_format == "few-shot":
            max_chars = max_chars or _FEW_SHOT_CHARS
            chosen = list(islice(traces, max_chars // _EXAMPLE_CHARS + 1))
            namespaces = _list_namespaces(namespace for _, namespace in chosen)
            if len(namespaces) > 1 and not all_namespaces:
                raise KPError(
                    f"the runs are of several namespaces ({', '.join(namespaces)}), and one text "
                    "would show each what the others did; choose one with --where namespace=NAME, "
                    "or give --all-namespaces"
                )
            few_shot = _few_shot(store, [trace for trace, _ in chosen], max_chars)
            if choice.taken and not few_shot.text:
                raise KPError(f"no example fits into {max_chars} characters; raise --max-chars")
            if few_shot.text:
                write(f"{few_shot.text}\n")
            written = len(few_shot.shown)
        else:
            is_unicode = output != STDOUT or takes_unicode(sys.stdout)
            written = 0
            for trace, namespace in traces:
                values = trace.model_dump(mode="json")
                if namespace is not None:
                    values["kp_namespace"] = namespace
                write(f"{json_line(values, is_unicode=is_unicode)}\n")
                written += 1
    noun = "example" if export_format == "few-shot" else "trace"
    line = _summary(written, noun, choice, output)
    if namespaces and written:
        noun = "namespace" if len(namespaces) == 1 else "namespaces"
        line += f" They are for runs of the {noun} {', '.join(namespaces)} alone."
    say(line, file=sys.stderr)


def _list_namespaces(namespaces: Iterable[str | None]) -> list[str]:
    """Return the namespaces for a message; after the first ones, only how many more there are."""
    names = [printable(one) for one in dict.fromkeys(namespaces) if one is not None]
    more = len(names) - _NAMESPACES_SHOWN
    return [*names[:_NAMESPACES_SHOWN], f"{more} more"] if more > 0 else names


def _few_shot(store: TraceStore, traces: Sequence[ReasoningTrace], max_chars: int) -> FewShot:
    """Return the traces as examples that have, with a line feed after them, `max_chars` at most."""
    verdicts = store.verdicts_by_trace([trace.id for trace in traces])
    return compose_few_shot(
        traces,
        trust=["verdict" if _is_stated(verdicts.get(one.id, ())) else "own" for one in traces],
        max_tokens=max_chars - 1,
        with_outputs=True,
        count_tokens=len,
    )


def _is_stated(verdicts: Sequence[Verdict]) -> bool:
    """Return whether the verdict that counts states success, of a run's verdicts by age."""
    counting = max(reversed(verdicts), key=lambda one: one.weight, default=None)
    return counting is not None and counting.success is not None


@dataclass(slots=True, kw_only=True)
class _Choice:
    """Which traces to export.

    Attributes:
        with_identifiers: Whether those of the privacy level `private` count.
        only_successes: Whether failures do not.
        taken: How many were chosen so far.
        left_out: How many were left out because of their privacy level.
    """

    with_identifiers: bool
    only_successes: bool
    taken: int = 0
    left_out: int = 0

    def of(
        self, traces: Iterable[tuple[ReasoningTrace, str | None]]
    ) -> Iterator[tuple[ReasoningTrace, str | None]]:
        for trace, namespace in traces:
            if self.only_successes and not trace.metadata.success:
                continue
            if trace.metadata.privacy_level == "private" and not self.with_identifiers:
                self.left_out += 1
                continue
            self.taken += 1
            yield trace, namespace


def _summary(written: int, noun: str, choice: _Choice, output: str) -> str:
    nouns = noun if written == 1 else f"{noun}s"
    line = f"Exported {written:,} {nouns}{'' if output == STDOUT else f' to {output}'}."
    if choice.left_out:
        line += f" Left out {choice.left_out} that keep identifiers (--with-identifiers)."
    return line
