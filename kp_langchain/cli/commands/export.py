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
from kp_langchain.recall.few_shot import FewShot, compose_few_shot

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore, Verdict

_FEW_SHOT_CHARS = 20_000
_EXAMPLE_CHARS = 75  # no example is shorter

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
    output: Output = STDOUT,
    database: Database = None,
) -> None:
    """Write traces that were kept, the newest first.

    Without --all, these are runs that passed; as examples for a prompt, those that succeeded. The
    store has only redacted text, so nothing else is written. Traces of the privacy level private
    keep identifiers such as addresses, and are left out without --with-identifiers. Examples are
    shortened; what tools returned in them is text of others.

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
    with open_store(database) as store, text_output(output) as write:
        choice = _Choice(
            with_identifiers=with_identifiers,
            only_successes=export_format == "few-shot" and not every,
        )
        traces = islice(choice.of(store.traces(with_expiring=every, **filters)), limit)
        if export_format == "few-shot":
            max_chars = max_chars or _FEW_SHOT_CHARS
            few_shot = _few_shot(store, traces, max_chars)
            if choice.taken and not few_shot.text:
                raise KPError(f"no example fits into {max_chars} characters; raise --max-chars")
            if few_shot.text:
                write(f"{few_shot.text}\n")
            written = len(few_shot.shown)
        else:
            is_unicode = output != STDOUT or takes_unicode(sys.stdout)
            written = 0
            for trace in traces:
                write(f"{json_line(trace.model_dump(mode='json'), is_unicode=is_unicode)}\n")
                written += 1
    noun = "example" if export_format == "few-shot" else "trace"
    say(_summary(written, noun, choice, output), file=sys.stderr)


def _few_shot(store: TraceStore, traces: Iterable[ReasoningTrace], max_chars: int) -> FewShot:
    """Return the traces as examples that have, with a line feed after them, `max_chars` at most."""
    chosen = list(islice(traces, max_chars // _EXAMPLE_CHARS + 1))
    verdicts = store.verdicts_by_trace([trace.id for trace in chosen])
    return compose_few_shot(
        chosen,
        trust=["verdict" if _is_stated(verdicts.get(one.id, ())) else "own" for one in chosen],
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

    def of(self, traces: Iterable[ReasoningTrace]) -> Iterator[ReasoningTrace]:
        for trace in traces:
            if self.only_successes and not trace.metadata.success:
                continue
            if trace.metadata.privacy_level == "private" and not self.with_identifiers:
                self.left_out += 1
                continue
            self.taken += 1
            yield trace


def _summary(written: int, noun: str, choice: _Choice, output: str) -> str:
    nouns = noun if written == 1 else f"{noun}s"
    line = f"Exported {written:,} {nouns}{'' if output == STDOUT else f' to {output}'}."
    if choice.left_out:
        line += f" Left out {choice.left_out} that keep identifiers (--with-identifiers)."
    return line
