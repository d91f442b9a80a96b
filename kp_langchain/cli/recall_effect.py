"""`recall --effect`, `--resume` and `--stop`: what examples do in a domain, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain.cli.options import domain_hint, person
from kp_langchain.cli.output import make_console, say, say_json, visible
from kp_langchain.recall.effect import effects_in
from kp_langchain.review.recall_facts import effect_lines
from kp_langchain.text import one_line

if TYPE_CHECKING:
    from kp_langchain.recall.effect import Effect
    from kp_langchain.store import TraceStore

_NAME_CHARS = 100
_STYLES = {"helps": "green", "hurts": "red", "not proven": ""}


def print_effects(store: TraceStore, domain: str | None, *, as_json: bool) -> None:
    """Print what examples do in each domain.

    Args:
        store: The store.
        domain: Only this domain; None for all.
        as_json: Whether to print one JSON object a line.
    """
    effects = effects_in(store, domain)
    if as_json:
        for one in effects:
            _say_json(one)
        return
    if not effects:
        of = "" if domain is None else f" of {one_line(domain, _NAME_CHARS)}"
        say(
            f"Whether a run{of} is shown examples was not drawn by lot yet in {store.location}: "
            f"KPMiddleware does that.{domain_hint(domain)}"
        )
        return
    from rich.text import Text

    console = make_console()
    for at, one in enumerate(effects):
        first, *others = effect_lines(one)
        name = one_line(one.domain, _NAME_CHARS)
        style = "red" if one.stop_reason else _STYLES[one.word]
        console.print(Text(("\n" if at else "") + visible(f"{name}: {first}"), style))
        for line in others:
            console.print(Text(visible(f"  {line}")))


def decide(store: TraceStore, domain: str, *, shows: bool, note: str | None, as_json: bool) -> None:
    """Store what a person decides of the examples of a domain, and print it.

    Args:
        store: The store.
        domain: The domain.
        shows: Whether its runs are to be shown examples.
        note: Why; None if the person does not say.
        as_json: Whether to print a JSON object.
    """
    store.effects.decide(domain, shows=shows, source=person(), note=note)
    if as_json:
        for one in effects_in(store, domain):
            _say_json(one)
        return
    name = one_line(domain, _NAME_CHARS)
    if shows:
        line = f"Runs of {name} are shown examples again; what these do is measured anew from now."
    else:
        line = f"Runs of {name} are shown no examples until --resume."
    unknown = "" if store.count(domain=domain) else f" No run of it is in {store.location} yet."
    say(f"{line} Processes that run notice within a minute.{unknown}{domain_hint(domain)}")


def _say_json(effect: Effect) -> None:
    more = {"difference": effect.difference, "stop_reason": effect.stop_reason}
    say_json(effect, {name: _rounded(value) for name, value in more.items()})


def _rounded(value: float | str | None) -> float | str | None:
    return round(value, 6) if isinstance(value, float) else value
