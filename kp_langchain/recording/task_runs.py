"""Compares a run with others of its task, and then judges the earlier ones of them again.

That may let an earlier run pass, and never withdraws one. It is done with the gate `worth` only,
because agreement changes nothing else; and until a run was compared with five others, so however
often a task is repeated, that costs little.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.agreement import (
    RunDigest,
    TaskRun,
    agreement_of,
    pairs_of,
)
from kp_langchain.calibration.features import PROVES_FAILURE, complete_features
from kp_langchain.calibration.planted_instructions import has_planted
from kp_langchain.gate.check import GateCheck
from kp_langchain.gate.judge import judge_again
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring.dimensions import outcome_confidence
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kp_langchain.calibration.agreement import Pair
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.gate.run import Run
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.windows import DomainWindow
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict


def compare(
    window: DomainWindow, run: Run, verdict: Verdict | None
) -> tuple[TaskRun | None, list[Pair]]:
    """Return a run as others of its task are compared with it, and those it is compared with.

    Args:
        window: That of its domain.
        run: The run. If it has no task, or is withheld, it is compared with none.
        verdict: What states its success.
    """
    if run.task is None or run.withheld:
        return None, []
    keys = run.keys or RunKeys()
    task_run = TaskRun(
        trace_key(run.trace.id),
        str(run.run_id),
        RunDigest.of(run.trace),
        keys.thread or keys.session,
        # Only where the gate goes by agreement, because it takes longer than all else here.
        is_planted=run.policy.gate == "worth" and has_planted(run.trace),
        success=None if verdict is None else verdict.success,
    )
    return task_run, window.compare(task_run, (run.task, keys.namespace))


def judge_earlier(
    context: HandlerContext, store: TraceStore, newest: ScoredTrace
) -> list[ScoredTrace]:
    """Judge earlier runs again; return those on which the decision changed.

    Args:
        context: The handler that the newest run comes from.
        store: The store, which has it.
        newest: The newest run of the domain. If it is the first one that is gated by agreement, all
            tasks that this process has seen are judged again, and else its own.
    """
    if newest.gate != "worth":
        return []
    domain = newest.trace.metadata.task_domain
    window = context.windows.of(domain)
    tasks = set(window.tasks_gated_by_score())
    if newest.task is not None and newest.breakdown.agreement is not None:
        tasks.add((newest.task, None if newest.keys is None else newest.keys.namespace))
    try:
        return [
            changed
            for task in sorted(tasks, key=str)
            for runs in [store.task_runs.newest(domain, *task)]
            for run in reversed(runs)
            if (changed := _judge(context, store, window, newest, run, runs)) is not None
        ]
    except Exception as error:  # noqa: BLE001 - the next run of the task has them judged again
        warn_once(
            f"earlier runs:{type(error).__name__}",
            "earlier runs of a task cannot be judged again now (%s)",
            describe_error(error),
        )
        return []


def _judge(
    context: HandlerContext,
    store: TraceStore,
    window: DomainWindow,
    newest: ScoredTrace,
    run: TaskRun,
    others: Sequence[TaskRun],
) -> ScoredTrace | None:
    pairs = [] if run.trace_id == trace_key(newest.trace.id) else pairs_of(run, others)
    if not pairs or (run.gate == "worth" and len(pairs) <= run.compared_runs):
        return None

    def estimate(scored: ScoredTrace) -> Verdict:
        trace = scored.trace if scored.keep_body else None
        features = complete_features(scored.features, trace) or {}
        worth = window.estimate(window.model(), features, scored.breakdown.agreement)
        is_failure = bool(features.get(PROVES_FAILURE, 0.0))
        confidence = outcome_confidence(worth.confidence or 0.0, success=not is_failure)
        return replace(worth, confidence=confidence)

    judge = partial(
        judge_again,
        agreement=agreement_of(pairs),
        is_judged=run.success is not None,
        estimate=estimate,
        check=GateCheck(newest.gate, newest.gated_value, newest.threshold, newest.pass_rate),
    )
    scored = store.task_runs.judge_again(
        run.trace_id,
        judge,
        jobs=store.journal.jobs,
        registry=context.registry_url,
        tools=context.tools,
    )
    if scored is None or scored.previous is None or scored.decision == scored.previous.decision:
        return None
    if scored.decision == "kept":
        window.add(scored)
    return scored
