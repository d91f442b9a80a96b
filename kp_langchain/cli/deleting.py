"""Deletes runs for good, as `delete` and `prune` do: ask, delete, withdraw, compact, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.output import say
from kp_langchain.cli.sending import current_registry, send_due
from kp_langchain.errors import KPError, StoreError
from kp_langchain.printable import one_line

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import TraceStore
    from kp_langchain.store.run_columns import Deletion

_DOMAINS_SHOWN = 6
_DOMAIN_CHARS = 60
_INTERRUPTED = 130

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]
Timeout = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long to withdraw.")
]


@dataclass(slots=True)
class Result:
    """What a command deleted, and what is left to be done.

    Attributes:
        deleted: How many runs it deleted.
        to_withdraw: How many of them a registry still has, or may have.
        is_compacted: Whether no file of the store has text of deleted runs any more; None if the
            command did not try.
    """

    deleted: int = 0
    to_withdraw: int = 0
    is_compacted: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.to_withdraw and self.is_compacted is not False


class Deleting:
    """Delete runs of a store, and report each step.

    Args:
        store: The store.
        as_json: Report on stderr, because stdout gets JSON.
    """

    def __init__(self, store: TraceStore, *, as_json: bool) -> None:
        self._store, self._as_json = store, as_json
        self.result = Result()

    def say(self, line: str) -> None:
        """Print a line of the report."""
        say(line, file=sys.stderr if self._as_json else sys.stdout)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say what an interruption leaves, and end the command with 130."""
        try:
            yield
        except KeyboardInterrupt:
            self.say("interrupted; what is deleted already stays deleted")
            raise typer.Exit(_INTERRUPTED) from None

    def confirm(self, plan: Deletion, *, is_confirmed: bool) -> None:
        """Show what would be deleted, and ask, unless that is confirmed already.

        Raises:
            KPError: There is nobody to ask.
            Abort: The answer was no.
        """
        self.say(describe(plan))
        if is_confirmed:
            return
        if not sys.stdin.isatty():
            raise KPError(
                "nothing was deleted, because there is no terminal to ask at; to delete without "
                "a question, add --yes; to see what would be deleted, --dry-run"
            )
        typer.confirm("Delete them for good?", abort=True, err=self._as_json)

    def delete(self, plan: Deletion, timeout_s: float) -> None:
        """Delete runs, and withdraw what a registry has of them.

        Args:
            plan: What to delete.
            timeout_s: Seconds that withdrawing may take.

        Raises:
            KPError: The store cannot be written, or the settings cannot be used.
        """
        # Settings that cannot be used end the command before it has deleted anything.
        registry = current_registry() if plan.at_registry else None
        self._store.carry_out(plan)
        self.result.deleted = len(plan)
        self.say(f"Deleted {_runs(len(plan))} from {self._store.location}.")
        if plan.at_registry:
            self._withdraw(set(plan.trace_ids), registry, timeout_s)

    def _withdraw(self, trace_ids: set[str], registry: Registry | None, timeout_s: float) -> None:
        def count_due() -> int:
            return sum(one.trace_id in trace_ids for one in self._store.outbox.to_withdraw())

        self.result.to_withdraw = count_due()
        try:
            left = send_due(self._store, registry, count_due, timeout_s, self.say)
            self.result.to_withdraw = left
        except KPError as error:  # the next process that sends withdraws them
            self.say(f"{self.result.to_withdraw} are not withdrawn yet: {error}")

    def compact(self) -> None:
        """Give back the room of what was deleted; what keeps that from being done is reported."""
        try:
            self.result.is_compacted = self._store.compact()
        except StoreError as error:
            self.result.is_compacted = False
            self.say(f"Files of the store may still have text of deleted runs: {error}.")
        else:
            if self.result.is_compacted:
                self.say("Gave back the room.")
            else:
                self.say(
                    "Its write-ahead log may still have text of deleted runs, because another "
                    "process kept reading it."
                )
        if not self.result.is_compacted:
            self.say("Try that again later: kp-langchain prune")


def describe(plan: Deletion) -> str:
    """Return in one line what a plan would delete."""
    shown = list(plan.by_domain.items())[:_DOMAINS_SHOWN]
    parts = [f"{one_line(domain, _DOMAIN_CHARS)} {number}" for domain, number in shown]
    if more := len(plan.by_domain) - len(shown):
        parts.append(f"{more} more domains")
    if plan.unscored:
        parts.append(f"not scored yet {len(plan.unscored)}")
    if plan.paused:
        parts.append(f"paused {len(plan.paused)}")
    line = f"{_runs(len(plan))}: {', '.join(parts)}."
    if plan.at_registry:
        line += f" {plan.at_registry} of them were sent to a registry and are withdrawn there."
    return line


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
