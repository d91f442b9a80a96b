"""The columns of a run, each declared once: its name, its type, and where its value comes from.

`StoredRun` and `OtherColumns` declare them. From these come the table (`tables.runs`), the rows
that are written (`recorded_row`, `judged_columns`), what a store returns of a run with its JSON
form, and the fields of the log record.
"""

# ruff: noqa: RUF009 - each of these calls returns a `field`

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from kp_langchain.calibration.failure_signs import signs_of
from kp_langchain.config import current_prices
from kp_langchain.errors import StoreError
from kp_langchain.gate.run import gated_value, reason_text
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store.rows import (
    body_of,
    clean_name,
    clean_value,
    expiry_after,
    fold_text,
    json_text,
    trace_key,
)
from kp_langchain.usage import Usage, usage_row

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run, ScoredTrace
    from kp_langchain.store.rows import JsonText

Since = Literal["recorded", "judged", "outcome"]
RunState = Literal["recorded", "judged"]
"""How far a run has come."""

SEARCHED_CHARS = 1000
"""So many characters at the beginning of an objective are searched."""

_MOST_TOOLS = 100
_NO_KEYS = RunKeys()


# ------------------------------------------------------------------ the declaration


@dataclass(frozen=True, slots=True)
class Column:
    """Where the value of a column comes from.

    Attributes:
        since: When a run gets its value: at its first write, or when it is judged. A verdict may
            change an `outcome`.
        of: Returns the value of a `Run` or a `ScoredTrace`; None if whoever writes the row sets it.
        clean: Returns that value as the database takes it; not called for None.
        log: Its name in the log record, True for the same name; False if it is not logged.
        key: What `RunKeys` calls it; empty if it is no key of the run.
    """

    since: Since
    of: Callable[[Any], Any] | None
    clean: Callable[[Any], Any]
    log: bool | str = False
    key: str = ""

    def stored_value(self, run: Run | ScoredTrace) -> Any:
        """Return what the database gets of a run."""
        value = None if self.of is None else self.of(run)
        return None if value is None else self.clean(value)


def _column(
    since: Since,
    of: str | Callable[[Any], Any] | None = None,
    clean: Callable[[Any], Any] = clean_value,
    *,
    log: bool | str = False,
) -> Any:
    """Declare a column; `of` is also an attribute of a run, dotted if it is one of its parts."""
    of = attrgetter(of) if isinstance(of, str) else of
    return field(metadata={"column": Column(since, of, clean, log)})


def _key(key: str, clean: Callable[[Any], Any] = clean_value, *, log: bool | str = True) -> Any:
    """Declare a column that holds a key of the run."""

    def of(run: Run | ScoredTrace) -> Any:
        return getattr(run.keys or _NO_KEYS, key)

    return field(metadata={"column": Column("recorded", of, clean, log, key)})


def _not_a_column(**options: bool) -> Any:
    """Declare a computed field."""
    return field(**options)  # type: ignore[call-overload]


def _tool_names(run: Run | ScoredTrace) -> list[str]:
    names = dict.fromkeys(clean_name(step.tool.name) for step in run.trace.steps if step.tool)
    return list(names)[:_MOST_TOOLS]


def _count_recoveries(run: Run | ScoredTrace) -> int:
    return sum(step.type == "error_recovery" for step in run.trace.steps)


def _of_usage(run: Run | ScoredTrace, name: str) -> float | None:
    return None if run.usage is None else getattr(run.usage, name)


def _expiry(scored: ScoredTrace) -> datetime | None:
    """Return when the body of a run that is not kept expires; None for never."""
    expires = scored.keep_body and scored.decision != "kept"
    return expiry_after(scored.keep_days) if expires else None


def _clean_tags(tags: Sequence[str]) -> JsonText:
    return json_text([clean_name(tag) for tag in tags])


@dataclass(frozen=True)
class StoredRun:
    """One scored run as the store has it.

    Attributes:
        trace_id: The trace's id, `kp:trace:<uuid>` if it was made here. An id from elsewhere that
            is longer than 150 characters, or that no database takes, is cut and cleaned and ends in
            its hash.
        run_id: LangChain's id of the root run.
        created_at: When the run began, in UTC.
        domain: The run's domain.
        framework: `langchain`, `langgraph`, ..., if known.
        agent_id: `kp:agent:<id>`, if known.
        objective: The task in words.
        success: Whether the run reached its goal.
        confidence: The confidence of the outcome, 0 to 1.
        confidence_source: Where success and confidence came from, if known.
        n_steps: The number of steps.
        score: The score, 0 to 1.
        threshold: What its score or worth was held against, 0 to 1.
        decision: `kept`, `below_threshold` or `twin`.
        profile: The name of the weight profile.
        visibility: `private`, `org` or `network`.
        privacy_level: `aggregated`, `federated` or `private`.
        has_trace: Whether the store has the trace itself.
        kept_until: When the trace itself expires, in UTC; None if it never does or is not there.
        withheld: Why the trace must never be contributed; None if it may be.
        session: The session it belongs to, in plain text or hashed; see `RunKeys`.
        thread: The LangGraph thread it ran in, in plain text or hashed.
        user_hash: The user it ran for, hashed.
        run_name: Its name, in plain text or hashed.
        namespace: Its namespace, in plain text or hashed.
        tags: Its tags, each in plain text or hashed.
        gate: Whether its score or its worth was held against the threshold.
        worth: How much it is worth keeping, 0 to 1; None where nothing was known but the score.
        agreement: How far it agrees with other runs of its task, 0 to 1; None if it was compared
            with none.
        veto: The flag because of which it does not pass; None if there is none.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1; 1 for the same text. None if they are
            alike in their task alone.
        replaced_by: Id of the kept trace that took its place.
        recovered_errors: After how many errors it went on.
        tools: Names of the tools that it used, in the order of their first use; at most 100.
        redactions: How often each kind of sensitive text was replaced in its trace, by kind.
        dropped: How many `steps`, `texts` and usages of calls (`usage`) the recorder had no room
            for; empty if none.
        usage: What it took: tokens, calls and time; None if that is not known.
        is_taken_over: Whether the process that recorded it ended before it was judged, so that
            another one judged it, by its policy and with the bundled scorer alone.
        breakdown: How its score came about.
        read_trace: Returns the trace of a trace id from the store.
    """

    trace_id: str = _column("recorded", "trace.id", trace_key, log=True)
    run_id: str = _column(
        "recorded", lambda run: str(run.run_id), lambda text: clean_name(text.lower()), log=True
    )
    created_at: datetime = _column("recorded", "trace.metadata.created_at")
    domain: str = _column("recorded", "trace.metadata.task_domain", clean_name, log=True)
    framework: str | None = _column("recorded", "trace.metadata.framework", log=True)
    agent_id: str | None = _column("recorded", "trace.metadata.agent_id", log=True)
    objective: str = _column("recorded", "trace.task.objective")
    success: bool = _column("outcome", "trace.metadata.success", log=True)
    confidence: float = _column("outcome", "trace.outcome.confidence", log=True)
    confidence_source: str | None = _column("outcome", "breakdown.confidence_source", log=True)
    n_steps: int = _column("recorded", lambda run: len(run.trace.steps), log="steps")
    score: float = _column("outcome", "breakdown.total", log=True)
    threshold: float = _column("judged", "threshold", log=True)
    decision: str = _column("outcome", "decision", log=True)
    profile: str = _column("judged", "breakdown.profile", log=True)
    visibility: str = _column("recorded", "trace.metadata.visibility")
    privacy_level: str = _column("recorded", "trace.metadata.privacy_level")
    has_trace: bool = _not_a_column()
    kept_until: datetime | None = _not_a_column()
    withheld: str | None = _column("recorded", "withheld")
    session: str | None = _key("session")
    thread: str | None = _key("thread", log="thread_id")  # the log record has a `thread` of its own
    user_hash: str | None = _key("user", log="user")
    run_name: str | None = _key("name")
    namespace: str | None = _key("namespace")
    tags: list[str] = _key("tags", _clean_tags)
    gate: str = _column("judged", "gate", log=True)
    worth: float | None = _column("outcome", "worth", log=True)
    agreement: float | None = _column(
        "outcome", lambda run: run.breakdown.agreement and run.breakdown.agreement.value
    )
    veto: str | None = _column("outcome", "veto", log=True)
    twin_of: str | None = _column("outcome", "twin_of", trace_key, log=True)
    similarity_to_twin: float | None = _column("outcome", "similarity_to_twin", log=True)
    replaced_by: str | None = _column("outcome")
    recovered_errors: int = _column("recorded", _count_recoveries)
    tools: list[str] = _column("recorded", _tool_names, json_text)
    redactions: dict[str, int] = _column("recorded")
    dropped: dict[str, int] = _column("recorded", lambda run: dict(run.dropped), json_text)
    usage: Usage | None = _column("recorded", "usage", lambda usage: json_text(usage.to_dict()))
    is_taken_over: bool = _column("judged", "is_taken_over")
    breakdown: ScoreBreakdown = _not_a_column(repr=False)
    read_trace: Callable[[str], ReasoningTrace | None] = _not_a_column(repr=False, compare=False)

    @property
    def gated_value(self) -> float:
        """What was held against the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.score, self.worth)

    @property
    def reason(self) -> str:
        """Why it was kept or not, in one line."""
        return reason_text(self, self.domain, self.twin_of, self.replaced_by)

    @property
    def trace(self) -> ReasoningTrace | None:
        """The trace itself, read from the store on each access; None if it is not kept.

        Raises:
            StoreError: The store cannot be read, or the body holds no trace.
        """
        return self.read_trace(self.trace_id) if self.has_trace else None

    def to_row(self) -> dict[str, Any]:
        """Return it as one flat row, such as of a DataFrame; see `ScoredTrace.to_row`."""
        names = ("trace_id", "run_id", "domain", "decision", "threshold", "success")
        return {
            **{name: getattr(self, name) for name in names},
            **self.breakdown.to_row(),
            **usage_row(self.usage, current_prices().cost(self.usage, self.created_at)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all but the trace, with `reason`, as plain values for JSON; times as ISO 8601."""
        values = {name: getattr(self, name) for name in STORED_FIELDS}
        texts = {
            name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)
        }
        return (
            values
            | texts
            | {
                "usage": self.usage and self.usage.to_dict(),
                "reason": self.reason,
                "breakdown": self.breakdown.to_dict(),
            }
        )


@dataclass(frozen=True)
class OtherColumns:
    """The columns of `runs` that `StoredRun` does not have.

    Attributes:
        state: How far the run has come.
        has_body: Whether its trace is in `bodies`.
        body_expires_at: When the trace of a run that is not kept expires; None for never.
        keep_days: After how many days it does; None for never.
        task: Hash of the run's `kp_task`, or of an objective that states a task.
        tool_set: Hash of the tools that its models could ask for; see the table `tool_sets`.
        compared_runs: With how many other runs of its task it was compared.
        is_planted: Whether it holds what looks like planted instructions; None if nobody looked.
        search_text: The beginning of the objective, as it is searched.
        validated_by: Who confirmed its outcome, in order.
        gated_value: What the gate saw of the run when it was judged; None if it was withheld or
            vetoed. A verdict does not change this and the two below.
        passed: Whether one more run was kept because of it.
        pass_rate: The share of runs that was to pass then.
        twin_similarity: From which similarity it repeats a kept one; 1 for the rule being off.
        dimensions: The value and weight of each dimension, by its name.
        rules: What each rule added, by its name.
        novelty: Its novelty, 0 to 1.
        novelty_source: Where that came from.
        total_tokens: Its tokens, input and output together; None if no model reported any.
        duration_ms: How long it took; None if that is not known.
        signs: What failures that are alike have in common, by the kind of sign.
    """

    state: str = _column("recorded")
    has_body: bool = _column("recorded")
    body_expires_at: datetime | None = _column("judged", _expiry)
    keep_days: float | None = _column("judged", "keep_days")
    task: str | None = _column("recorded", "task")
    tool_set: str | None = _column("recorded")
    compared_runs: int | None = _column(
        "outcome", lambda run: run.breakdown.agreement and run.breakdown.agreement.runs
    )
    is_planted: bool | None = _column("judged", "is_planted")
    search_text: str = _column(
        "recorded", lambda run: fold_text(run.trace.task.objective)[:SEARCHED_CHARS]
    )
    validated_by: list[str] | None = _column("outcome", "trace.metadata.validated_by", json_text)
    gated_value: float | None = _column(
        "judged", lambda run: None if run.withheld or run.veto else run.gated_value
    )
    passed: bool | None = _column("judged", "counts_toward_rate")
    pass_rate: float | None = _column("judged", "pass_rate")
    twin_similarity: float = _column("judged", "twin_similarity")
    dimensions: dict[str, Any] | None = _column(
        "outcome",
        lambda run: {
            name: [one.value, one.weight] for name, one in run.breakdown.dimensions.items()
        },
        json_text,
    )
    rules: dict[str, float] | None = _column(
        "outcome",
        lambda run: {rule.name: rule.after - rule.before for rule in run.breakdown.rules},
        json_text,
    )
    novelty: float | None = _column("outcome", "breakdown.novelty.value")
    novelty_source: str | None = _column("outcome", "breakdown.novelty_source", log=True)
    total_tokens: float | None = _column("recorded", lambda run: _of_usage(run, "total_tokens"))
    duration_ms: float | None = _column("recorded", lambda run: _of_usage(run, "duration_ms"))
    signs: dict[str, str] | None = _column("recorded", lambda run: signs_of(run.trace), json_text)


STORED_FIELDS = tuple(
    one.name for one in fields(StoredRun) if one.name not in ("breakdown", "read_trace")
)
"""What `StoredRun` has of a run in columns, by name."""

COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        one.name: one.metadata["column"]
        for one in (*fields(StoredRun), *fields(OtherColumns))
        if one.metadata
    }
)
"""Each column of the table `runs` by its name."""

KEY_COLUMNS: Mapping[str, str] = MappingProxyType(
    {name: column.key for name, column in COLUMNS.items() if column.key}
)
"""What `RunKeys` calls each column that holds a key of a run."""


# ------------------------------------------------------------------ rows


def recorded_row(run: Run | ScoredTrace, body: JsonText | None) -> dict[str, Any]:
    """Return the row of `runs` that a run has from its first write on.

    Args:
        run: The run.
        body: Its trace, as `body_of` returns it; None if that is not stored.
    """
    return _row(run, "recorded") | {
        "state": "recorded",
        "has_body": body is not None,
        "redactions": json_text(Counter(PLACEHOLDER.findall(body or body_of(run.trace)))),
    }


def judged_columns(scored: ScoredTrace) -> dict[str, Any]:
    """Return the columns of `runs` that a run has once it is judged."""
    return _row(scored, "judged") | outcome_columns(scored)


def outcome_columns(scored: ScoredTrace) -> dict[str, Any]:
    """Return the columns of `runs` that a later verdict may change."""
    return _row(scored, "outcome")


def _row(run: Run | ScoredTrace, since: str) -> dict[str, Any]:
    return {name: column.stored_value(run) for name, column in _BY_TIME[since]}


_BY_TIME = {
    since: [(name, one) for name, one in COLUMNS.items() if one.since == since]
    for since in ("recorded", "judged", "outcome")
}


def key_columns(keys: RunKeys) -> dict[str, Any]:
    """Return the columns that hold the keys of a run."""
    values = {name: getattr(keys, key) for name, key in KEY_COLUMNS.items()}
    return {
        name: None if value is None else COLUMNS[name].clean(value)
        for name, value in values.items()
    }


def keys_of(row: Mapping[str, Any]) -> RunKeys:
    """Return the keys that a row of the table `runs` holds."""
    keys = {key: row[name] for name, key in KEY_COLUMNS.items()}
    return RunKeys(**keys | {"tags": tuple(row["tags"] or ())})


def usage_in(row: Mapping[Any, Any]) -> Usage | None:
    """Return the usage that a row of the table `runs` holds; None if it holds none."""
    try:
        return None if row["usage"] is None else Usage.from_dict(row["usage"])
    except ValidationError:  # it was changed from outside
        return None


def trace_of(body: dict[str, Any], trace_id: str) -> ReasoningTrace:
    """Return the trace that a stored body holds.

    Args:
        body: The body as JSON-like values.
        trace_id: The trace's id, for messages.

    Raises:
        StoreError: The body holds no trace.
    """
    try:
        return ReasoningTrace.model_validate(body)
    except ValidationError as error:
        raise StoreError(
            f"the body of {trace_id} cannot be read back ({error.error_count()} faults); it was "
            "changed outside kp-langchain: restore it from a backup, or delete the run: "
            f"kp-langchain store delete {trace_id}"
        ) from error
