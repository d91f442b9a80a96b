"""Compares a run with others of its task, and then judges the earlier ones of them again.

That may let an earlier run pass, and never withdraws one. It is done with the gate `worth` only,
because agreement changes nothing else; and until a run was compared with five others, so however
often a task is repeated, that costs little.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.agreement import RunDigest, TaskRun
from kp_langchain.calibration.features import PROVES_FAILURE, complete_features
from kp_langchain.gate.check import GateCheck, check
from kp_langchain.gate.judge import judge_again
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring.dimensions import outcome_confidence
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.gate.run import Run
    from kp_langchain.policy import DomainPolicy
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.windows import DomainWindow
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.evidence import Agreement
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

# Without a model, runs pass by agreement that is above the average of their domain, which is a
# confidence of 0.5, as that of a run that was compared with none.
_ABOVE_AVERAGE = math.nextafter(0.5, 1.0)


def task_key_of(run: Run | ScoredTrace) -> tuple[str, str | None] | None:
    """Return task and namespace of a run; None if it is compared with no other."""
    if run.task is None or run.withheld:
        return None
    return run.task, None if run.keys is None else run.keys.namespace


def task_run_of(run: Run, verdict: Verdict | None) -> TaskRun:
    """Return a run as others of its task are compared with it.

    Args:
        run: The run.
        verdict: What states its success.
    """
    from kp_langchain.calibration.planted_instructions import has_planted

    keys = run.keys or RunKeys()
    return TaskRun(
        trace_key(run.trace.id),
        str(run.run_id),
        RunDigest.of(run.trace).to_bytes(),
        frozenset(filter(None, (keys.thread, keys.session))),
        is_planted=has_planted(run.trace),
        success=None if verdict is None else verdict.success,
    )


def check_in(
    window: DomainWindow,
    domain: str,
    policy: DomainPolicy,
    model: ConfidenceModel | None,
    breakdown: ScoreBreakdown,
) -> GateCheck:
    """Return what a run is compared with now.

    Args:
        window: That of its domain.
        domain: The domain.
        policy: The domain's policy.
        model: The domain's model; None without one.
        breakdown: The run's score.
    """
    return check(
        breakdown,
        domain,
        policy,
        recent=lambda gate: window.recent_values(gate, model),
        is_new=window.is_new(),
        has_model=model is not None,
        base_rate=_ABOVE_AVERAGE if model is None else model.base_rate,
    )


def judge_earlier(
    context: HandlerContext, store: TraceStore, newest: ScoredTrace
) -> list[ScoredTrace]:
    """Judge earlier runs again; return those on which the decision changed.

    Args:
        context: The handler that the newest run comes from.
        store: The store, which has it.
        newest: The newest run of the domain. If it is the first one that this process gates by its
            worth, all tasks whose runs wait are judged again, and else its own.
    """
    if newest.gate != "worth":
        return []
    domain = newest.trace.metadata.task_domain
    window, policy = context.windows.of(domain), context.policy_for(domain)
    model = window.model()
    tasks = set(window.waiting_tasks())
    key = task_key_of(newest)
    if key is not None and newest.breakdown.agreement is not None:
        tasks.add(key)

    def estimate(scored: ScoredTrace) -> Verdict:
        trace = scored.trace if scored.keep_body else None
        features = complete_features(scored.features, trace) or {}
        worth = window.estimate(model, features, scored.breakdown.agreement)
        is_failure = bool(features.get(PROVES_FAILURE, 0.0))
        confidence = outcome_confidence(worth.confidence or 0.0, success=not is_failure)
        return replace(worth, confidence=confidence)

    def judge(scored: ScoredTrace, agreement: Agreement, has_verdict: bool) -> ScoredTrace:
        return judge_again(
            scored,
            agreement,
            has_verdict=has_verdict,
            policy=policy,
            estimate=estimate,
            check=lambda breakdown: check_in(window, domain, policy, model, breakdown),
        )

    changed: list[ScoredTrace] = []
    try:
        for task, namespace in sorted(tasks, key=str):
            changed += store.task_runs.judge_again(
                domain,
                task,
                namespace,
                judge,
                jobs=store.journal.jobs,
                registry=context.registry_url,
                tools=context.tools,
            )
    except Exception as error:  # noqa: BLE001 - the next run of the task has them judged again
        warn_once(
            f"earlier runs:{type(error).__name__}",
            "earlier runs of a task cannot be judged again now (%s)",
            describe_error(error),
        )
    for scored in changed:
        if scored.decision == "kept":
            window.add(scored)
    return changed
