"""The arguments of `KPCallbackHandler`: checked, with errors that name them; and its parts.

The parts are a recorder, what takes its runs to the engine, and what the engine needs of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import DomainPolicy, Settings, warn_of_domain
from kp_langchain.errors import ConfigError
from kp_langchain.policy import PROFILES
from kp_langchain.recording.bounds import Bounds, Counters, RecordOwner
from kp_langchain.recording.engine import Engine, engine_of
from kp_langchain.recording.judging import HandlerContext
from kp_langchain.recording.outcome import Verifiers
from kp_langchain.recording.pauses import HandlerPauses
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_builder import RunBuilder
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.score_receivers import TraceFinder, receivers_of, score_sender
from kp_langchain.recording.store_writer import Pause, VerdictWrite, Work
from kp_langchain.recording.user_calls import JUDGING, UserFunctions, lane_for
from kp_langchain.run_keys import check_agent_id
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.values import clean_text

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.outcome import OutcomeFunction, Verifier
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

_MAX_VERIFIER_S = 3600
_FUNCTIONS = ("outcome", "on_scored", "objective", "redactor")


class Default(Enum):
    """Stands for "as the settings say" in arguments for which None has a meaning."""

    STORE = "the store of the settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The arguments of `KPCallbackHandler`, unresolved; its docstring explains them."""

    domain: str = "default"
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None = None
    scorer: Scorer | None = None
    store: TraceStore | str | Path | Default | None = Default.STORE
    registry: Registry | str | None = None
    outcome: OutcomeFunction | None = None
    verifiers: Sequence[Verifier] = ()
    verifier_timeout_s: float = 10.0
    agent_id: str | None = None
    on_scored: Callable[[ScoredTrace], object] | None = None
    objective: Callable[[Any], str | None] | None = None
    redactor: Callable[[str], str] | None = None
    send_scores_to: Sequence[str | ScoreReceiver] | None = None

    def check(self) -> None:
        """Refuse arguments that cannot be used.

        Raises:
            ConfigError: One cannot be used; the message names it, its value, and what would be
                right.
        """
        for name, (is_usable, advice) in _CHECKS.items():
            value = getattr(self, name)
            is_left_out = value is None and name not in _NEVER_NONE
            if not is_left_out and not is_usable(value):
                raise ConfigError(f"{name} is {value!r}; {advice}")

    def for_other_process(self, store: TraceStore | None) -> dict[str, Any]:
        """Return the arguments as they go to another process, by name.

        Args:
            store: What the argument of that name stands for in this process.
        """
        arguments = {name: getattr(self, name) for name in self.__slots__}
        # A relative path means another file in another working folder.
        is_path = isinstance(self.store, (str, Path))
        return arguments | ({"store": store} if is_path else {})


def _is_domain(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and clean_text(value) == value


def _is_function(value: Any) -> bool:
    return callable(value) and not iscoroutinefunction(value)


def _are_verifiers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        callable(one) and not isinstance(one, type) for one in value
    )


def _is_time_limit(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= _MAX_VERIFIER_S


def _is_scorer(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "evaluate", None))


def _is_policy(value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else [value]
    return all(isinstance(one, DomainPolicy) for one in values)


def _is_store(value: Any) -> bool:
    return value is Default.STORE or isinstance(value, (TraceStore, str, Path))


_NEVER_NONE = ("domain", "verifiers", "verifier_timeout_s")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "domain": (_is_domain, "give a non-empty text such as 'finance'"),
    "policy": (_is_policy, "give a DomainPolicy or a mapping from domain to DomainPolicy"),
    "store": (_is_store, "give a TraceStore, a database URL or file, or None to keep nothing"),
    "registry": (
        lambda value: isinstance(value, str) or hasattr(value, "contribute"),
        "give a Registry, its URL, or leave it out for the one of the settings",
    ),
    "verifiers": (_are_verifiers, "give a list of functions, each of one FinishedRun"),
    "verifier_timeout_s": (
        _is_time_limit,
        f"give seconds, more than 0 and at most {_MAX_VERIFIER_S}",
    ),
    "scorer": (_is_scorer, "give a Scorer or leave it out"),
    "agent_id": (lambda value: isinstance(value, str), "give a text such as 'kp:agent:me'"),
    "send_scores_to": (
        lambda value: isinstance(value, (list, tuple)),
        "give a list such as ['langsmith'], or leave it out",
    ),
    **dict.fromkeys(
        _FUNCTIONS,
        (
            _is_function,
            "give a function (not an async one, it is called on a worker thread) or leave it out",
        ),
    ),
}


def _never_raising(objective: Callable[[Any], str | None]) -> Callable[[Any], str]:
    """Wrap the user's `objective`: never raise, and return "" unless it returns a text."""

    def ask(inputs: Any) -> str:
        try:
            text = objective(inputs)
        except Exception as error:  # noqa: BLE001 - the user's function
            warn_once(
                f"objective:{type(error).__name__}",
                "the objective function raised %s; the usual places are searched instead",
                describe_error(error),
            )
            return ""
        return str.strip(text) if isinstance(text, str) else ""

    return ask


def _known_domains(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, scorer: object, settings: Settings
) -> frozenset[str]:
    """Return the names of the domains with weights or a policy of their own."""
    policy_domains = policy if isinstance(policy, Mapping) else ()
    profiles = scorer.profiles if isinstance(scorer, Scorer) else PROFILES
    return frozenset(chain(PROFILES, profiles, settings.domains, policy_domains))


def _policies(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, settings: Settings
) -> Callable[[str], DomainPolicy]:
    """Return the function that gives a domain's policy: the argument's over the settings'.

    Raises:
        ConfigError: The argument is not a policy, or a policy would send runs that are redacted
            too little.
    """
    if policy is None:
        return settings.policy_for
    by_domain = dict(policy) if isinstance(policy, Mapping) else None
    one = policy if isinstance(policy, DomainPolicy) else None

    def override(domain: str) -> DomainPolicy | None:
        return one if by_domain is None else by_domain.get(domain)

    settings.refuse_leaks(["", *settings.domains] if by_domain is None else by_domain, override)
    return lambda domain: settings.policy_for(domain, override(domain))


def _agent_id_of(option: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the agent id that traces carry: the option, else the settings', else the key's."""
    if registry is None:
        agent_id = option or settings.agent_id
        return None if agent_id is None else check_agent_id(agent_id, settings.redaction)
    from kp_langchain.registry.credentials import agent_of

    return agent_of(option, settings, registry)


def _registry_of(
    registry: Registry | str | None, store: TraceStore | None, settings: Settings
) -> Registry | None:
    """Return the registry of the argument, or the one of the settings; None if nothing is sent.

    Raises:
        ConfigError: The argument is not a registry or its URL, or there is no store.
    """
    if registry is None and (store is None or settings.registry_url is None):
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry import Registry
    from kp_langchain.registry.credentials import configured_registry

    if store is None:
        raise ConfigError(
            "registry needs a store, because what is to be sent waits there; leave out store=None"
        )
    return registry if isinstance(registry, Registry) else configured_registry(settings, registry)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RunIntake:
    """Takes the finished and the paused runs of one handler to the engine.

    Attributes:
        engine: The engine of the handler's store.
        context: What the handler adds to it.
        max_queue: Most finished runs that wait, in this process.
    """

    engine: Engine
    context: HandlerContext
    max_queue: int

    @property
    def redactor(self) -> Callable[[str], str] | None:
        """The user's function that redacts further, if there is one."""
        return self.context.builder.redactor

    def prepare(self) -> None:
        """Start the threads when the first run begins, so that it does not wait when it ends."""
        self.engine.prepare(self.context)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that ended so far are judged, stored and announced.

        Args:
            timeout_s: Seconds to wait at most; None for no limit.

        Returns:
            Whether that was done in time.
        """
        self.prepare()
        return self.engine.wait(timeout_s, self.context)

    def add_verdict(self, run: str, verdict: Verdict) -> None:
        """Take a verdict on a run that ended; it is written behind the run itself.

        Args:
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is not redacted yet.
        """
        self.context.counters.add("queued_verdicts")
        self._start_threads()
        self.engine.submit(VerdictWrite(self.context, run, verdict))

    def add(self, record: RunRecord) -> None:
        """Take a run that ended or paused; drop it (counted) if too many wait."""
        counters, verifiers = self.context.counters, self.context.verifiers
        if verifiers is not None and verifiers.asking:
            # a run started by a verifier; verifying it would recurse
            counters.add("by_verifiers")
        elif self.engine.waiting(self.context) >= self.max_queue:
            counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self.max_queue,
            )
        else:
            is_paused = record.ending == "paused"
            counters.add("paused" if is_paused else "queued")
            self._start_threads(is_needed=self.context.builder.may_wait(record))
            self.engine.submit(
                Pause(self.context, record) if is_paused else Work(self.context, record)
            )

    def _start_threads(self, *, is_needed: bool = False) -> None:
        # When a run ends, because an interpreter that is ending starts no threads.
        if is_needed or self.context.has_user_code:
            self.context.functions.lane.prepare()


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[Recorder] = Recorder
) -> tuple[Recorder, RunIntake]:
    """Make the parts of a handler: what records its runs, and what takes them to the engine.

    Args:
        options: The handler's arguments, checked.
        settings: Defaults for arguments that were left out.
        recorder_class: The kind of recorder.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """
    domains = _known_domains(options.policy, options.scorer, settings)
    warn_of_domain(options.domain, domains)
    store = _store(options, settings)
    registry = _registry_of(options.registry, store, settings)
    agent_id = _agent_id_of(options.agent_id, settings, registry)
    redactor = options.redactor or settings.redaction.load_redactor()
    sender = _sender(store, registry)
    receivers = _receivers(options, settings, store)
    engine = engine_of(store, settings.max_queue)
    windows = engine.windows_of_handler()
    functions = _user_functions(options, settings, redactor, store)
    counters = functions.counters
    verifiers = Verifiers(
        tuple(options.verifiers), replace(functions, time_limit_s=options.verifier_timeout_s)
    )
    context = HandlerContext(
        store=store,
        builder=RunBuilder(
            domain=options.domain,
            domains=domains,
            policy_for=_policies(options.policy, settings),
            agent_id=agent_id,
            registry=sender.registry.url if sender else None,
            outcome=options.outcome,
            redactor=redactor,
            rules=settings.redaction,
            functions=functions,
            paused_runs=HandlerPauses.of(store, (options.domain, agent_id), settings),
        ),
        scorer=options.scorer or windows.scorer(),
        is_foreign_scorer=_is_foreign(options.scorer),
        windows=windows,
        verifiers=verifiers if options.verifiers else None,
        functions=functions,
        sender=sender,
        score_senders=tuple(
            score_sender(one, store, counters) for one in receivers if store is not None
        ),
        on_scored=options.on_scored,
    )
    intake = RunIntake(engine, context, settings.max_queue)
    find_traces = TraceFinder(receivers, counters) if receivers else None
    return recorder_class(_owner(options, settings, context), intake, find_traces), intake


def _store(options: HandlerOptions, settings: Settings) -> TraceStore | None:
    """Return the store of the argument, or the one of the settings."""
    option, store = options.store, None
    if isinstance(option, TraceStore):
        store = option
    elif option is not None:
        store = default_store(settings.database_url if isinstance(option, Default) else option)
    return store


def _receivers(
    options: HandlerOptions, settings: Settings, store: TraceStore | None
) -> tuple[ScoreReceiver, ...]:
    """Return the tools of the argument, or those of the settings; none without a store.

    Raises:
        ConfigError: The argument cannot be used, or there is no store.
    """
    if options.send_scores_to and store is None:
        raise ConfigError(
            "send_scores_to needs a store, because a score waits there until it is sent; leave out "
            "store=None"
        )
    tools = options.send_scores_to
    receivers = receivers_of(settings.send_scores_to if tools is None else tools)
    return () if store is None else receivers


def _user_functions(
    options: HandlerOptions,
    settings: Settings,
    redactor: Callable[[str], str] | None,
    store: TraceStore | None,
) -> UserFunctions:
    """Return what calls the functions of a handler: on one lane with those of the same code."""
    user_code = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    lane = lane_for((id(store), *map(_identity, user_code)), JUDGING)
    return UserFunctions(lane, settings.function_timeout_s, Counters())


def _owner(options: HandlerOptions, settings: Settings, context: HandlerContext) -> RecordOwner:
    objective = options.objective
    return RecordOwner(
        Bounds.of(settings),
        context.counters,
        is_live=True,
        keeps_output=options.outcome is not None,
        objective_of=None if objective is None else _never_raising(objective),
    )


def _identity(function: object) -> Hashable:
    """Return a key that is equal for functions with the same code.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def _is_foreign(scorer: object) -> bool:
    """Return whether a scorer, its embedder or its memory is the user's own code."""
    if scorer is None:
        return False
    return type(scorer) is not Scorer or scorer.calls_user_code


def _sender(store: TraceStore | None, registry: Registry | None) -> Sender | None:
    if store is None or registry is None:
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry.sender import sender_for

    return sender_for(store, registry)
