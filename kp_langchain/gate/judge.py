"""The judge of a run: its outcome, its score with what is known of that, and the decision.

Pure functions: no database, no threads. `judge` is for a new run, `rejudge` for one on which a
verdict came later, and `judge_again` for one that can be compared with more runs of its task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kp_langchain.gate.check import threshold_of, waits
from kp_langchain.gate.run import ScoredTrace, decide
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    TraceShape,
    estimated_success,
    outcome_confidence,
)
from kp_langchain.verdict import CERTAINTY, Verdict, first_decisive

if TYPE_CHECKING:
    from kp_langchain.gate.check import GateCheck
    from kp_langchain.gate.run import Run
    from kp_langchain.policy import DomainPolicy
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.evidence import Agreement
    from kp_langchain.scoring.novelty_memory import MemoryEntry


def choose_outcome(
    success: bool,
    verdicts: Sequence[Verdict] = (),
    estimate: Verdict | None = None,
    *,
    proves_failure: bool = False,
) -> Verdict:
    """Choose success and confidence, each from the first source that states it.

    Args:
        success: Whether the run looks successful by itself.
        verdicts: What is stated about the run, best first.
        estimate: The confidence by the domain's model. Not used if success, failure or a confidence
            is stated. A run that only looks like a failure counts as a success if the model finds
            one likelier.
        proves_failure: Whether the run itself proves that it failed; see `Run.proves_failure`.

    Returns:
        A verdict that states both; its source is that of the confidence. By default that is 0.8
        for a success and 0.2 for a failure.
    """
    decisive = first_decisive(verdicts)
    success = success if decisive is None else bool(decisive.success)
    best = next((verdict for verdict in verdicts if verdict.confidence is not None), None)
    if best is None and decisive is None and estimate is not None:
        best = estimate
        success = estimated_success(
            estimate.confidence or 0.0, looked_successful=success, proves_failure=proves_failure
        )
    if best is None:
        best = Verdict(confidence=DEFAULT_CONFIDENCE[success], source="default")
    return Verdict(success, best.confidence, source=best.source)


def outcome_of(run: Run, verdicts: Sequence[Verdict], estimate: Verdict | None) -> Verdict:
    """Return success and confidence of a run.

    In order count: what was reported, a `confidence` in structured output, the domain's model, and
    the defaults.

    Args:
        run: The run.
        verdicts: What is stated about it, best first.
        estimate: The confidence by the domain's model; None without one.
    """
    claimed = []
    if run.structured is not None:
        claimed.append(Verdict(confidence=run.structured, source="structured output"))
    return choose_outcome(
        run.looked_successful,
        [*verdicts, *claimed],
        estimate,
        proves_failure=run.proves_failure,
    )


def trace_with_outcome(
    trace: ReasoningTrace, outcome: Verdict, **metadata: object
) -> ReasoningTrace:
    """Return a copy of a trace with an outcome and other metadata; the score can be set in it."""
    success, confidence = bool(outcome.success), outcome.confidence or 0.0
    parts = {
        "metadata": trace.metadata.model_copy(update={"success": success, **metadata}),
        "outcome": trace.outcome.model_copy(update={"confidence": confidence}),
    }
    return trace.model_copy(update=parts)


def explain_outcome(
    breakdown: ScoreBreakdown,
    run: Run,
    outcome: Verdict,
    estimate: Verdict | None,
) -> ScoreBreakdown:
    """Return the score of a run with the source of its confidence.

    Args:
        breakdown: The score of the trace with this outcome.
        run: The run.
        outcome: As `outcome_of` returned it.
        estimate: The confidence by the domain's model; None without one.
    """
    success, confidence = bool(outcome.success), outcome.confidence or 0.0
    if success or run.proves_failure or estimate is None or outcome.source != estimate.source:
        return breakdown.with_confidence_from(outcome.source, confidence, success=success)
    # It looks like a failure, and its confidence is an estimate of that.
    return breakdown.with_outcome(
        success=False,
        confidence=confidence,
        source=outcome.source,
        shape=TraceShape.of(run.trace),
        lowers_confidence=False,
    )


def with_worth(
    breakdown: ScoreBreakdown,
    run: Run,
    verdicts: Sequence[Verdict],
    estimate: Verdict | None,
) -> ScoreBreakdown:
    """Return the score of a run with its worth, if there is an estimate of that.

    Args:
        breakdown: The score, with the source of its confidence.
        run: The run.
        verdicts: What is stated about the run.
        estimate: The confidence of the worth, and its basis; None if nothing is known of it.
    """
    if estimate is None or estimate.confidence is None:
        return breakdown
    if verdicts:
        return breakdown.with_worth(breakdown.outcome_confidence.value, _by_verdict(breakdown))
    # The run may state a confidence of its own, which nothing has tested.
    tested = outcome_confidence(estimate.confidence, success=not run.proves_failure)
    return breakdown.with_worth(tested, estimate.source)


def _by_verdict(breakdown: ScoreBreakdown) -> str:
    return f"a verdict ({breakdown.confidence_source})"


def veto_of(
    breakdown: ScoreBreakdown, policy: DomainPolicy, check: GateCheck, verdict: Verdict | None
) -> str | None:
    """Return the flag because of which a run does not pass; None if there is none.

    The documents' gate, by a fixed threshold of the score, knows no flags.

    Args:
        breakdown: Its score, with its flags.
        policy: The policy of its domain.
        check: What it is compared with.
        verdict: The verdict on it that counts. None vetoes a run that one calls a success.
    """
    has_veto = policy.gate == "worth" or check.pass_rate is not None
    is_right = verdict is not None and verdict.success is True
    return next(iter(breakdown.flags), None) if has_veto and not is_right else None


def judge(
    run: Run,
    trace: ReasoningTrace,
    breakdown: ScoreBreakdown,
    check: GateCheck,
    *,
    entry: MemoryEntry | None,
    verdict: Verdict | None,
    features: Mapping[str, float],
    is_remembered: bool = False,
) -> ScoredTrace:
    """Return a run as it is decided on, before it is compared with the kept ones.

    Args:
        run: The run.
        trace: Its trace, with the outcome and the score.
        breakdown: Its score.
        check: What it is compared with.
        entry: What others are compared with of it; None if its scorer failed, so that it never
            passes.
        verdict: The verdict that calls it a success or a failure, its note redacted.
        features: What a confidence model reads of it.
        is_remembered: Whether the store's novelty memory has it.
    """
    policy = run.policy
    veto = veto_of(breakdown, policy, check, verdict)
    may_pass = not run.withheld and entry is not None and veto is None
    decision = decide(check.value, check.threshold) if may_pass else "below_threshold"
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decision,
        threshold=check.threshold,
        run_id=run.run_id,
        # A withheld trace can never be contributed, so it is not kept to await a verdict.
        keep_body=policy.keep == "all"
        or decision == "kept"
        or (policy.keep_days > 0 and not run.withheld),
        keep_days=None if policy.keep == "all" else policy.keep_days,
        features=features,
        verdict=verdict,
        gate=check.gate,
        pass_rate=check.pass_rate,
        veto=veto,
        twin_similarity=policy.twin_similarity,
        entry=entry,
        is_remembered=is_remembered,
        **run.facts(),
    )


def rejudge(run: ScoredTrace, verdict: Verdict) -> ScoredTrace:
    """Score a run again after a verdict, and decide again.

    Everything but the outcome stays as it was when the run happened: novelty, weights, gate,
    threshold. A run that waits passes if it reaches the built-in threshold now, and else waits on.

    Args:
        run: The run as the store has it; `keep_body` says whether it still has the trace itself.
        verdict: The verdict; its note is redacted already.

    Returns:
        The run with the new outcome, score and decision, and `previous`, the run as given. A trace
        that the store no longer has, or that is withheld, does not pass. One that passes now is
        still to be compared with the kept traces that it repeats.
    """
    trace = run.trace
    success = trace.metadata.success if verdict.success is None else verdict.success
    confidence = CERTAINTY[success] if verdict.confidence is None else float(verdict.confidence)
    features = run.features
    shape = TraceShape.of(trace) if features is None else TraceShape.from_counts(features)
    breakdown = run.breakdown.with_outcome(
        success=success,
        confidence=confidence,
        source=verdict.source,
        shape=shape,
    )
    threshold = run.threshold
    if waits(run.gate, threshold):  # a verdict may end that
        built_in = threshold_of(trace.metadata.task_domain, None).for_score(breakdown)
        threshold = built_in if breakdown.total >= built_in else threshold
    veto = None if verdict.success is True else run.veto
    passes = (
        run.keep_body
        and run.withheld is None
        and veto is None
        and decide(replace(run, breakdown=breakdown).gated_value, threshold) == "kept"
    )
    # With keep_days 0, a run that no longer passes is not kept for another verdict.
    keep_body = run.keep_body and (passes or run.decision != "kept" or run.keep_days != 0)
    confirmed_by = [*(trace.metadata.validated_by or []), verdict.source]
    return replace(
        run,
        trace=trace_with_outcome(
            trace,
            Verdict(success, confidence),
            quality_score=breakdown.total,
            validated_by=list(dict.fromkeys(confirmed_by)),
        ),
        breakdown=breakdown,
        decision="kept" if passes else "below_threshold",
        threshold=threshold,
        veto=veto,
        keep_body=keep_body,
        verdict=verdict,
        previous=run,
        twin_of=None,
        similarity_to_twin=None,
        replaces=(),
    )


def judge_again(
    run: ScoredTrace,
    agreement: Agreement,
    *,
    has_verdict: bool,
    policy: DomainPolicy,
    estimate: Callable[[ScoredTrace], Verdict],
    check: Callable[[ScoreBreakdown], GateCheck],
) -> ScoredTrace:
    """Judge a run again, because there are other runs of its task that it was not compared with.

    That may let it pass, and never withdraws it.

    Args:
        run: The run as the store has it.
        agreement: How far it agrees with other runs of its task now.
        has_verdict: Whether there is a verdict on it, which then gives its worth. Unless it waits,
            it stays as it is.
        policy: The policy of its domain.
        estimate: Returns the confidence of its worth, and its basis.
        check: Returns what it is compared with now.

    Returns:
        The run; `previous` is the run as given. One that passes now is still to be compared with
        the kept traces that it repeats.
    """
    before, run = run, replace(run, breakdown=replace(run.breakdown, agreement=agreement))
    is_settled = has_verdict and not waits(before.gate, before.threshold)
    if is_settled or before.decision != "below_threshold":
        return replace(run, previous=before)
    if has_verdict:
        stated = run.breakdown.outcome_confidence.value
        worth = Verdict(confidence=stated, source=_by_verdict(run.breakdown))
    else:
        worth = estimate(run)
    breakdown = run.breakdown.with_worth(worth.confidence or 0.0, worth.source)
    held_against = check(breakdown)
    run = replace(
        run,
        breakdown=breakdown,
        gate=held_against.gate,
        threshold=held_against.threshold,
        pass_rate=held_against.pass_rate,
        veto=before.veto if has_verdict else veto_of(breakdown, policy, held_against, None),
        previous=before,
    )
    may_pass = run.keep_body and run.withheld is None and run.veto is None
    decision = decide(held_against.value, held_against.threshold)
    return replace(run, decision=decision) if may_pass else run
