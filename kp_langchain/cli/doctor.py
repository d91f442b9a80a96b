"""The command `doctor`: what is in force, and what of it is broken."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import typer

from kp_langchain import __version__
from kp_langchain.cli.store_option import Database, is_missing
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.embedding.local_models import LocalModel
    from kp_langchain.registry import Registry

EXTRAS = {
    "sentence-transformers": ("sentence_transformers", "threadpoolctl"),
    "torch": ("sentence_transformers", "threadpoolctl"),  # another name of the same
    "embeddings": ("fastembed",),
    "calibrate": ("sklearn", "tomlkit"),
    "postgres": ("psycopg",),
    "demo": ("langchain", "langgraph"),
}
"""What can be installed besides, and the modules that it brings."""

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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is in force.

    Args:
        topic: What it is about, in a word.
        said: What there is to say about it; never a secret.
        broken: Whether it does not work.
    """

    topic: str
    said: str
    broken: bool = False


def doctor(database: Database = None) -> None:
    """Show what is in force: settings, store, registry, embedding model, extras.

    Loads the embedding model, so it takes as long as that. Creates no database. Asks the registry
    one question, if one is configured with a key.

    Exit status: 0, all of it works; 1, something is broken.
    """
    from rich.text import Text

    from kp_langchain.cli.run_tables import make_console

    console = make_console()
    broken = 0
    for finding in findings(database):
        broken += finding.broken
        text = Text(f"{finding.topic:<{_TOPIC_WIDTH}}")
        text.append("BROKEN: " if finding.broken else "", style="red")
        margin = "\n" + " " * _TOPIC_WIDTH
        text.append(finding.said.replace("\n", margin))
        console.print(text, soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def findings(database: str | None = None) -> Iterator[Finding]:
    """Look at everything, one thing after the other.

    Args:
        database: URL or file of the store; None for the one of the settings.
    """
    from kp_langchain.config import Settings

    yield Finding("kp-langchain", __version__)
    yield Finding("Python", f"{platform.python_version()}, {platform.system()}")
    yield Finding("langchain-core", version("langchain-core"))
    sources = list(_sources(database))
    yield from sources
    try:
        settings = Settings()
    except KPError as error:
        if len(sources) == 1:
            yield Finding("settings", str(error), broken=True)
    else:
        on = "off: KP_DISABLED or `disabled` is set" if settings.disabled else "on"
        yield Finding("recording", on)
        yield _store(database)
        yield from _registry(settings, database)
        yield from _embedding(settings)
        yield _scoring(settings)
    yield from _extras()


def _sources(database: str | None) -> Iterator[Finding]:
    """Say which sources there are, and what counts of each; the environment comes first."""
    from kp_langchain.config_files import places, read_files

    lines = []
    fault = None
    try:
        files = {file.path: file for file in read_files()}
    except KPError as error:
        files, fault = {}, str(error)
    for place in places():
        file = files.get(place.path)
        if file is None:
            lines.append(f"{'no file ' if place.content is None else ''}{place.path}")
            continue
        domains = file.values.get("domains")
        unused = _unused_domains(domains if isinstance(domains, dict) else (), database)
        counting = [key for key in _keys(file.values) if not _is_of(key, unused)]
        says = ", ".join(counting) or "nothing"
        lines.append(f"{file.path} ({file.standing.value}) says {says}")
        lines += _of_unused_domains(unused)
        if file.refused:
            lines.append(f"  does not count: {', '.join(file.refused)}")
            lines.append(f"  {file.remedy}")
    lines += _environment(database)
    yield Finding("settings", "\n".join(lines))
    if fault is not None:
        yield Finding("settings", fault, broken=True)


def _environment(database: str | None) -> list[str]:
    """Say which variables count, and which are no settings; an empty one counts as not set."""
    from kp_langchain.config import unknown_variables

    unknown = unknown_variables()
    set_ones = (name for name, value in os.environ.items() if value)
    ours = (name for name in set_ones if name.upper().startswith("KP_"))
    domain_of = {name: _domain_of(name) for name in sorted(ours) if name not in unknown}
    unused = _unused_domains(filter(None, domain_of.values()), database)
    counting = [name for name, domain in domain_of.items() if domain not in unused]
    lines = [f"environment: {', '.join(counting) or 'no setting'}", *_of_unused_domains(unused)]
    for name, meant in sorted(unknown.items()):
        lines.append(f"  {name} is no setting" + (f"; did you mean {meant}?" if meant else ""))
    return lines


def _domain_of(variable: str) -> str | None:
    """The domain of whose policy a variable is a part."""
    _, is_policy, rest = variable.upper().partition("KP_DOMAINS__")
    return rest.partition("__")[0].lower() if is_policy else None


def _unused_domains(domains: Iterable[str], database: str | None) -> dict[str, str]:
    """Return the domains that are nearly built-in ones and have no runs, with what they are."""
    from kp_langchain.near_names import near_name
    from kp_langchain.store import TraceStore
    from kp_langchain.weights import PROFILES

    pairs = ((name, near_name(name, PROFILES)) for name in domains)
    near = {name: meant for name, meant in pairs if meant is not None}
    with suppress(KPError), TraceStore(database) as store:
        if near and not is_missing(store):
            near = {name: meant for name, meant in near.items() if not store.count(domain=name)}
    return near


def _of_unused_domains(unused: Mapping[str, str]) -> list[str]:
    return [
        f"  domains.{name}: no run has this domain; did you mean {meant}?"
        for name, meant in unused.items()
    ]


def _is_of(key: str, domains: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"domains.{name}.") for name in domains)


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _keys(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}"


def _store(database: str | None) -> Finding:
    from kp_langchain.store import TraceStore

    try:
        with TraceStore(database) as store:
            if is_missing(store):
                return Finding("store", f"{store.location}, not there yet; the first run makes it")
            waiting = store.unscored.count()
            more = (
                f"; {waiting:,} more wait to be scored, by their process or, when that is gone, by "
                "the next that records here"
            )
            return Finding(
                "store", f"{store.location}, {store.count():,} runs{more if waiting else ''}"
            )
    except KPError as error:
        return Finding("store", str(error), broken=True)


def _registry(settings: Settings, database: str | None) -> Iterator[Finding]:
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.configured import configured_registry

    try:
        registry = configured_registry(settings)
    except KPError as error:
        yield Finding("registry", str(error), broken=True)
        return
    if registry is None:
        yield Finding(
            "registry", "none configured; what passes is kept, and nothing is sent anywhere"
        )
    elif registry.key_id == ANONYMOUS:
        without = "without a key; get one: kp-langchain register"
        yield Finding("registry", f"{registry.url}, {without}")
    else:
        yield _key(registry, settings, database)
        yield _agent(registry, settings)
        yield from _visibility(settings)


def _key(registry: Registry, settings: Settings, database: str | None) -> Finding:
    """Ask the registry once whether it knows the key, unless it is to be left alone."""
    line = f"{registry.url}, with a key"
    left_alone_s = _left_alone_s(registry, database)
    if settings.disabled:
        return Finding("registry", f"{line}; not asked, because recording is off")
    if left_alone_s > 0.0:
        return Finding("registry", f"{line}; to be left alone for {left_alone_s:.0f} s")
    answer = registry.check()
    if answer.verdict == "done":
        allowed = None if answer.allowance is None else answer.allowance.limit
        known = "which it knows" if allowed else "and does not say whether it knows it"
        return Finding("registry", f"{line}, {known}")
    hint = "\nSee to the key (kp-langchain register, KP_API_KEY) or to registry_url"
    stopped = answer.verdict == "stopped"
    what = answer.reason + hint if stopped else f"it cannot be asked now: {answer.reason}"
    return Finding("registry", f"{line}\n{what}", broken=stopped)


def _left_alone_s(registry: Registry, database: str | None) -> float:
    """Return the seconds for which the registry asked, by a 429, to be left alone."""
    from datetime import UTC, datetime

    from kp_langchain.registry.pace import wait_s
    from kp_langchain.store import TraceStore

    try:
        with TraceStore(database) as store:
            if is_missing(store):
                return 0.0
            standing = store.outbox.standing(registry.url, registry.key_id)
    except KPError:  # told under "store"
        return 0.0
    return wait_s(standing, datetime.now(UTC)) if standing.throttled_at else 0.0


def _agent(registry: Registry, settings: Settings) -> Finding:
    """Compare the agent that traces carry with the one that the key belongs to."""
    from kp_langchain.agent_id import shown
    from kp_langchain.registry.configured import agent_of, key_agent

    try:
        agent_id, of_key = agent_of(None, settings, registry), key_agent(registry)
    except KPError as error:
        return Finding("agent", str(error), broken=True)
    if of_key is None:
        said = f"{agent_id or 'traces carry none'}; whose the key is, is not known here"
        if agent_id is None:
            said += "\nnothing that is sent can be withdrawn; set agent_id (KP_AGENT_ID) to it"
        return Finding("agent", said, broken=agent_id is None)
    if agent_id == of_key:
        return Finding("agent", f"{agent_id}, as of the key")
    said = f"{agent_id or 'traces carry none'}, but the key is of {shown(of_key)}"
    more = "nothing that is sent can be withdrawn; leave out agent_id, or register this one"
    return Finding("agent", f"{said}\n{more}", broken=True)


def _visibility(settings: Settings) -> Iterator[Finding]:
    policies = [settings.defaults, *map(settings.policy_for, settings.domains)]
    if any(policy.visibility == "org" for policy in policies):
        yield Finding("visibility", "org; the public registry shows such units to anybody, too")


def _embedding(settings: Settings) -> Iterator[Finding]:
    from kp_langchain.embedding.auto_embedder import AutoEmbedder
    from kp_langchain.embedding.packages import INSTALL_HINT, is_any_installed

    if settings.embedding_model is None and not is_any_installed():
        yield Finding("embedding", f"nothing installed, so novelty is 0.5; {INSTALL_HINT}")
        return
    model = AutoEmbedder()
    started = time.perf_counter()
    try:
        dimensions = model.embed([""]).shape[1]
    except KPError as error:
        yield Finding("embedding", str(error), broken=True)
        return
    took_s = time.perf_counter() - started
    counted = f", baseline {model.identity.baseline:.3g}" if model.identity.baseline else ""
    yield Finding(
        "embedding",
        f"{model.description}\n{dimensions} dimensions{counted}, loaded in {took_s:.1f} s",
    )
    yield _languages(model)


def _scoring(settings: Settings) -> Finding:
    until = (
        "until newer ones need the room"
        if settings.novelty_ttl_s is None
        else f"each for {settings.novelty_ttl_s:g} s"
    )
    steps = "all steps" if settings.step_cap is None else f"at most {settings.step_cap:,} steps"
    return Finding(
        "scoring",
        f"remembers the last {settings.novelty_memory:,} traces, {until}\n"
        f"complexity counts {steps}; {settings.latency_budget_ms:g} ms for one run",
    )


def _languages(model: LocalModel) -> Finding:
    """Tell which languages the model can read."""
    from kp_langchain.embedding.legibility import UNREADABLE_ABOVE
    from kp_langchain.embedding.model_names import MODEL_VARIABLE, MULTILINGUAL_MODEL

    shares = {name: model.unreadable_share(text) for name, text in _SAMPLES.items()}
    known = {name: share for name, share in shares.items() if share is not None}
    unread = {name: share for name, share in known.items() if share > UNREADABLE_ABOVE}
    lines = [f"reads {', '.join(name for name in known if name not in unread) or 'none of these'}"]
    if len(known) < len(shares):
        lines = ["not known: the model's tokeniser does not tell what it cannot read"]
    if unread:
        told = ", ".join(f"{name} ({share:.0%} of its tokens)" for name, share in unread.items())
        lines += [
            f"cannot read {told}; novelty is 0.5 there",
            f"to read them, set {MODEL_VARIABLE}={MULTILINGUAL_MODEL}",
        ]
    return Finding("languages", "\n".join(lines))


def _extras() -> Iterator[Finding]:
    from kp_langchain.embedding.packages import is_installed

    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not is_installed(module)]
        hint = f"missing; pip install 'kp-langchain[{extra}]'"
        yield Finding(f"[{extra}]", hint if missing else "installed")
