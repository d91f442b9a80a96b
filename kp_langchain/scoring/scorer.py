"""`Scorer`: from a trace to a score that explains itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from kp_langchain._forksafe import ForkSafeLock, Undisturbed
from kp_langchain.embedding import problems
from kp_langchain.embedding.background import background
from kp_langchain.embedding.embed import (
    Embedding,
    embed_texts,
    is_ready,
    report_failure,
    report_not_installed,
)
from kp_langchain.embedding.embedders import resolve_embedder
from kp_langchain.embedding.identity import EmbedderIdentity, check_baseline
from kp_langchain.errors import BadEmbeddingError, ConfigError, VectorError, WeightsError
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import sources
from kp_langchain.scoring.breakdown import Nearest, ScoreBreakdown
from kp_langchain.scoring.evaluation import Comparison, Evaluation
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, RepeatMemory, fingerprint
from kp_langchain.scoring.trace_text import embedded_text
from kp_langchain.weights import PROFILES, ScoringWeights

if TYPE_CHECKING:
    from kp_langchain.embedding.background import EmbeddingFuture
    from kp_langchain.scoring.cache import VectorCache

TraceLike: TypeAlias = ReasoningTrace | Mapping[str, Any]
WeightsLike: TypeAlias = ScoringWeights | Mapping[str, float]

_CUSTOM = "custom"
_LONGEST_BUDGET_MS = 24 * 3600 * 1000.0
_SAME = 1 - 1e-6  # similarity of two embeddings of one text, but for rounding
_WAITING_SHARE = 0.8  # of the budget; the rest of an evaluation takes time, too


class Scorer:
    """Scores traces with its own profiles, embedder and memory.

    Scoring and remembering are two operations: `score` changes nothing, `remember` adds the
    trace's embedding to the memory, `evaluate` does both and embeds once. All may be called from
    any thread; two evaluations of the same text at the same time do not both find it new. An exact
    repeat of a remembered text has novelty 0, with an embedder or without, whatever its language.

    What the embedder does wrong never reaches the caller: novelty is then 0.5, the breakdown says
    why, and the logger `kp_langchain` gets one warning per process and kind of failure. The
    embedder is asked again for the next trace (for the limits of loading a model again see
    `LocalModel`).

    Args:
        profiles: Weights by domain, added to the built-in `PROFILES` or replacing some of them.
        embedder: `"auto"` for all-MiniLM-L6-v2 if installed, None for no embedder, a LangChain
            `Embeddings`, or anything with `embed(texts)` that returns an array (n, dimensions).
        cache: Where embeddings are remembered. By default a `VectorCache` of 1,000 vectors of the
            embedder's length.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1; novelty is
            counted from there. By default what the embedder says of itself (its attribute
            `baseline`), else 0.
        step_cap: Complexity counts at most this many steps (the documents' prose says 20); None
            counts all, as the documents' formula does.
        latency_budget_ms: Milliseconds that an evaluation may take; one that takes longer says so
            in its breakdown. While the embedder's model is still to load (its attribute `ready`
            is False), the first evaluation waits for it up to 80 % of this, and further ones do
            not wait: novelty is then 0.5, and the embedding is remembered once there is one.
            None for no limit: the first evaluation waits until the model is loaded.
        max_remembered: How many embeddings it remembers; 1,000 by default. A `cache` has its own
            bounds, so that it goes with neither this nor `ttl_ms`.
        ttl_ms: Milliseconds after which an embedding is forgotten; None for when newer ones need
            the room.

    Raises:
        ConfigError: The embedder, the cache, its bounds, the baseline, the step cap or the budget
            is unusable.
        WeightsError: A profile is unusable; the message names it.
    """

    def __init__(
        self,
        *,
        profiles: Mapping[str, WeightsLike] | None = None,
        embedder: object = "auto",
        cache: VectorCache | None = None,
        baseline: float | None = None,
        step_cap: int | None = None,
        latency_budget_ms: float | None = None,
        max_remembered: int | None = None,
        ttl_ms: float | None = None,
    ) -> None:
        if step_cap is not None:
            _check_above_0("step_cap", step_cap, or_else=", or None")
        if latency_budget_ms is not None:
            _check_budget(latency_budget_ms)
        if cache is not None:
            _check_cache(cache)
        _check_bounds(max_remembered, ttl_ms, has_cache=cache is not None)
        self._arguments: dict[str, Any] = {
            "profiles": _profiles_of(profiles or {}),
            "embedder": embedder,
            "cache": cache,
            "baseline": baseline,
            "step_cap": step_cap,
            "latency_budget_ms": latency_budget_ms,
            "max_remembered": max_remembered,
            "ttl_ms": ttl_ms,
        }
        self._profiles = {**PROFILES, **self._arguments["profiles"]}
        self._step_cap = step_cap
        self._latency_budget_ms = latency_budget_ms
        self._embedder = resolve_embedder(embedder)
        self._baseline = None if baseline is None else check_baseline(baseline, "this scorer")
        self._no_embedder_because = (
            problems.NO_EMBEDDER if embedder is None else problems.NOT_INSTALLED
        )
        self._cache = cache
        self._cache_is_given = cache is not None
        self._max_remembered = max_remembered
        self._ttl_ms = ttl_ms
        self._repeats = (
            RepeatMemory(max_remembered or DEFAULT_MAX_ELEMENTS, ttl_ms)
            if cache is None
            else cache.repeats
        )
        self._comparing = Undisturbed()  # vectors and repeats: one act
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[partial[Scorer], tuple[()]]:
        # To another process it travels as its arguments; what it remembers stays behind.
        return (partial(type(self), **self._arguments), ())

    @property
    def profiles(self) -> Mapping[str, ScoringWeights]:
        """The weights by domain, the built-in ones among them; read-only."""
        return MappingProxyType(self._profiles)

    @property
    def max_remembered(self) -> int:
        """How many traces it remembers at most."""
        if self._cache is not None:
            return self._cache.max_elements
        return self._max_remembered or DEFAULT_MAX_ELEMENTS

    @property
    def has_embedder(self) -> bool:
        """Whether it compares texts by their meaning, and not only finds exact repeats."""
        return self._embedder is not None

    def load(self) -> None:
        """Load the embedding model now, so that no evaluation waits for it or has to do without it.

        For services that start up before they serve; it does nothing if the model is loaded
        already, or there is none to load.

        Raises:
            MissingExtraError: What runs the model is not installed.
            EmbedderError: The model cannot be found, downloaded or loaded.
        """
        if self._embedder is not None and not is_ready(self._embedder):
            self.wait_until_ready()
            self._embedder.embed(["ready?"])  # raises what went wrong

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until no evaluation has to do without the model because it is still loading.

        Loading begins now if it has not, on a thread of its own. Any number of threads may wait;
        a fork does not wait for them.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if the model is still loading. True if it is loaded, or failed to load, or there
            is none to load: waiting longer would change nothing.
        """
        if self._embedder is None or is_ready(self._embedder):
            return True
        return background.wait_until_loaded(self._embedder, timeout_s)

    def score(
        self,
        trace: TraceLike,
        *,
        weights: WeightsLike | None = None,
        ignore: Set[str] = frozenset(),
    ) -> ScoreBreakdown:
        """Score a trace and change nothing.

        Args:
            trace: The trace, or a mapping in wire form.
            weights: Used instead of the domain's profile, for this call.
            ignore: Ids of remembered traces that are no precedents for this one.

        Raises:
            pydantic.ValidationError: The mapping is no valid trace; the message names the field.
            WeightsError: The weights are unusable.
            VectorError: The cache given to this scorer takes vectors of another length than the
                embedder's, or holds those of another embedder.
        """
        return self._assess(trace, weights, ignore, remember=False)

    def remember(self, trace: TraceLike) -> None:
        """Add the trace's embedding and the hash of its text to the memory, under the trace's id.

        Without a working embedder, and of a text that its model cannot read, the hash alone is
        added: an exact repeat has novelty 0 all the same. A model that is still loading is not
        waited for beyond the latency budget; the embedding is then added later.

        Raises:
            pydantic.ValidationError: The mapping is no valid trace; the message names the field.
            VectorError: As for `score`.
        """
        trace = ReasoningTrace.model_validate(trace)
        embedding = self._embed(trace, self._until(time.perf_counter()), remember=True)
        with self._comparing:
            self._add(embedding, trace.id)
            self._repeats.add(_fingerprint(trace), trace.id)

    def evaluate(
        self,
        trace: TraceLike,
        *,
        weights: WeightsLike | None = None,
        ignore: Set[str] = frozenset(),
    ) -> ScoreBreakdown:
        """Score a trace, then remember it; arguments and errors are those of `score`."""
        return self._assess(trace, weights, ignore, remember=True)

    def evaluate_many(
        self,
        traces: Iterable[TraceLike],
        *,
        weights: WeightsLike | None = None,
        ignore: Set[str] = frozenset(),
        batch_size: int = 256,
    ) -> Iterator[ScoreBreakdown]:
        """Evaluate one trace after the other, faster: embedded and compared a batch at a time.

        The scores, the nearest traces and the memory left behind are those of `evaluate`. No
        more than two batches are held, so `traces` may be endless; whoever stops in the middle of a
        batch has had the rest of it remembered. A trace that `evaluate` refuses raises the same
        error in its place, after which iteration may go on.
        There is no latency budget: it waits for the model.

        Args:
            traces: The traces, or mappings in wire form.
            weights: Used instead of the domains' profiles.
            ignore: Ids of remembered traces that are no precedents for these.
            batch_size: How many traces to take at a time.

        Returns:
            The breakdowns, in order; `elapsed_ms` is a trace's share of the time of its batch.

        Raises:
            ConfigError: The batch size is no whole number above 0.
            WeightsError: The weights are unusable.
        """
        from kp_langchain.scoring.batches import BreakdownIterator

        _check_above_0("batch_size", batch_size)
        weighting = None if weights is None else ScoringWeights.of(weights)
        return BreakdownIterator(
            traces,
            batch_size,
            begin=lambda given: self._read(given, weighting),
            compare=lambda batch: self._compare_all([one.trace for one in batch], ignore),
            compare_one=lambda one: self._compare(one.trace, ignore, remember=True, until=None),
            finish=lambda one, comparison, started: one.breakdown(
                comparison, step_cap=self._step_cap, started=started, budget_ms=None
            ),
        )

    def _assess(
        self,
        given: TraceLike,
        weights: WeightsLike | None,
        ignore: Set[str],
        *,
        remember: bool,
    ) -> ScoreBreakdown:
        started = time.perf_counter()
        reading = self._read(given, weights)
        until = self._until(started)
        comparison = self._compare(reading.trace, ignore, remember=remember, until=until)
        return reading.breakdown(
            comparison,
            step_cap=self._step_cap,
            started=started,
            budget_ms=self._latency_budget_ms,
        )

    def _until(self, started: float) -> float | None:
        budget_ms = self._latency_budget_ms
        return None if budget_ms is None else started + _WAITING_SHARE * budget_ms / 1000

    def _read(self, given: TraceLike, weights: WeightsLike | None) -> Evaluation:
        trace = ReasoningTrace.model_validate(given)
        if weights is not None:
            return Evaluation.of(trace, _CUSTOM, ScoringWeights.of(weights))
        domain = trace.metadata.task_domain
        profile = domain if domain in self._profiles else "default"
        return Evaluation.of(trace, profile, self._profiles[profile])

    def _compare(
        self, trace: ReasoningTrace, ignore: Set[str], *, remember: bool, until: float | None
    ) -> Comparison:
        embedding = self._embed(trace, until, remember=remember)
        if remember:
            return self._compare_and_add([trace], [embedding], ignore)[0]
        nearest = None
        with self._comparing:
            if embedding.vector is not None:
                cache = self._prepare_cache(embedding)
                nearest = cache.nearest(embedding.vector, ignore=ignore)
            repeated = self._repeats.find(_fingerprint(trace), ignore=ignore)
        return self._compared(embedding, nearest, repeated)

    def _compare_all(self, traces: Sequence[ReasoningTrace], ignore: Set[str]) -> list[Comparison]:
        """Do what `_compare` does for each trace, but raise what the embedder raises."""
        if self._embedder is None:
            return [self._compare(trace, ignore, remember=True, until=None) for trace in traces]
        made = embed_texts(self._embedder, [embedded_text(trace) for trace in traces])
        return self._compare_and_add(traces, made, ignore)

    def _compare_and_add(
        self, traces: Sequence[ReasoningTrace], made: Sequence[Embedding], ignore: Set[str]
    ) -> list[Comparison]:
        """Compare each trace with what is remembered, then remember it; both are one act."""
        found: Iterator[tuple[str | None, float] | None] = iter(())
        embedded = [one for one in made if one.vector is not None]
        fingerprints = [_fingerprint(trace) for trace in traces]
        with self._comparing:
            if embedded:
                import numpy as np

                ids = [trace.id for trace, one in zip(traces, made, strict=True) if not one.problem]
                vectors = np.stack([one.vector for one in embedded if one.vector is not None])
                cache = self._prepare_cache(embedded[0])
                found = iter(cache.nearest_then_add(vectors, ids, ignore=ignore))
            repeated = [
                self._repeats.find_then_add(text, trace.id, ignore=ignore)
                for text, trace in zip(fingerprints, traces, strict=True)
            ]
        return [
            self._compared(one, None if one.problem else next(found), repeat)
            for one, repeat in zip(made, repeated, strict=True)
        ]

    def _embed(self, trace: ReasoningTrace, until: float | None, *, remember: bool) -> Embedding:
        """Embed a trace.

        With `remember`, a vector that a loading model gives only after `until` (None: whenever)
        is added to the memory by itself.
        """
        if until is None:
            self.wait_until_ready()
        if self._embedder is None:
            if self._no_embedder_because == problems.NOT_INSTALLED:
                return report_not_installed()
            return Embedding(None, self._no_embedder_because)
        text = embedded_text(trace)
        try:
            if until is None or is_ready(self._embedder):
                (embedding,) = embed_texts(self._embedder, [text])
            else:
                coming = background.submit(self._embedder, text)
                if coming is None or not background.wait_for(self._embedder, coming, until):
                    if coming is not None and remember:
                        coming.add_done_callback(partial(self._add_late, trace.id))
                    elif coming is not None:
                        coming.cancel()
                    return Embedding(None, problems.STILL_LOADING)
                embedding = coming.result()
            if embedding.vector is not None:
                self._prepare_cache(embedding)
        except VectorError:  # of the cache that the caller chose
            raise
        except Exception as error:  # noqa: BLE001 - any embedder may fail in any way
            return report_failure(error)
        return embedding

    def _add_late(self, key: str, coming: EmbeddingFuture) -> None:
        try:
            self._add(coming.result(), key)
        except BaseException as error:  # noqa: BLE001 - on the background's thread nobody listens
            report_failure(error)

    def _add(self, embedding: Embedding, key: str) -> None:
        if embedding.vector is not None:
            self._prepare_cache(embedding).add(embedding.vector, key=key)

    def _compared(
        self,
        embedding: Embedding,
        found: tuple[str | None, float] | None,
        repeated: Nearest | None,
    ) -> Comparison:
        share = embedding.unreadable_share
        if repeated is not None:
            known = found is not None and found[1] > _SAME
            return Comparison(repeated, sources.NEAREST if known else sources.REPEAT, share)
        if embedding.problem:
            return Comparison(None, embedding.problem, share)
        if found is None:
            return Comparison(None, sources.EMPTY_CACHE, share)
        baseline = self._identity(embedding).baseline
        return Comparison(Nearest(*found), sources.NEAREST, share, baseline)

    def _identity(self, embedding: Embedding) -> EmbedderIdentity:
        if self._baseline is None:
            return embedding.identity
        return replace(embedding.identity, baseline=self._baseline)

    def _prepare_cache(self, embedding: Embedding) -> VectorCache:
        """Return the memory for an embedding; one of its own begins anew with another model."""
        length = 0 if embedding.vector is None else len(embedding.vector)
        identity = self._identity(embedding)
        with self._lock:
            if self._cache is not None and not self._cache.claim(identity):
                if self._cache_is_given:
                    raise VectorError(
                        "the cache holds embeddings of another model, revision or baseline than "
                        f"{identity}; give each embedder a cache of its own, or clear() it"
                    )
                self._cache = None
            if self._cache is None:
                from kp_langchain.scoring.cache import VectorCache

                self._cache = VectorCache(self.max_remembered, length, self._ttl_ms)
                self._cache.claim(identity)
            elif length != self._cache.dimensions and not self._cache_is_given:
                raise BadEmbeddingError(
                    f"the embedder returned {length} values after {self._cache.dimensions} before"
                )
            return self._cache


def evaluate_value(trace: TraceLike) -> float:
    """Score a trace with the process's default scorer, remember it, return the score, 0 to 1.

    The `evaluateValue` of the KnowledgePulse documents. The first call waits until the embedding
    model is loaded.

    Raises:
        pydantic.ValidationError: The mapping is no valid trace; the message names the field.
    """
    trace = ReasoningTrace.model_validate(trace)
    scorer = default_scorer()
    scorer.wait_until_ready()
    return scorer.evaluate(trace).total


async def aevaluate_value(trace: TraceLike) -> float:
    """Do what `evaluate_value` does, in a thread, so that the event loop is never blocked."""
    return await asyncio.to_thread(evaluate_value, trace)


_default_scorer: Scorer | None = None
_default_lock = ForkSafeLock()


def default_scorer() -> Scorer:
    """Return the one scorer behind `evaluate_value`, `aevaluate_value` and handlers without one.

    Its latency budget, memory and step cap are the settings `latency_budget_ms`, `novelty_memory`,
    `novelty_ttl_s` and `step_cap` as they were when it was first asked for. The budget bounds what
    `evaluate` waits for a model, and so the scoring of runs; `evaluate_value` waits before it calls
    that.

    Raises:
        ConfigError: A setting cannot be read or used.
    """
    global _default_scorer
    with _default_lock:
        if _default_scorer is None:
            from kp_langchain.config import Settings

            settings = Settings()
            ttl_s = settings.novelty_ttl_s
            _default_scorer = Scorer(
                step_cap=settings.step_cap,
                latency_budget_ms=settings.latency_budget_ms,
                max_remembered=settings.novelty_memory,
                ttl_ms=None if ttl_s is None else ttl_s * 1000,
            )
        return _default_scorer


def _fingerprint(trace: ReasoningTrace) -> bytes:
    return fingerprint(embedded_text(trace))


def _profiles_of(given: Mapping[str, WeightsLike]) -> dict[str, ScoringWeights]:
    if not isinstance(given, Mapping):
        raise WeightsError(f"profiles is a {type(given).__name__}; give a mapping from domain")
    profiles = {}
    for domain, weights in given.items():
        try:
            profiles[domain] = ScoringWeights.of(weights)
        except WeightsError as error:
            raise WeightsError(f"profile {domain!r}: {error}") from error
    return profiles


def _check_above_0(name: str, value: object, *, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0{or_else}")


def _check_budget(budget_ms: object) -> None:
    if (
        isinstance(budget_ms, bool)
        or not isinstance(budget_ms, int | float)
        or not 0 < budget_ms <= _LONGEST_BUDGET_MS
    ):
        raise ConfigError(
            f"latency_budget_ms is {budget_ms!r}; it must be a number of milliseconds above 0, "
            "at most a day, or None"
        )


def _check_bounds(max_remembered: object, ttl_ms: object, *, has_cache: bool) -> None:
    if has_cache and (max_remembered, ttl_ms) != (None, None):
        raise ConfigError(
            "cache comes with max_remembered or ttl_ms; give the cache these bounds itself: "
            "VectorCache(max_elements, dimensions, ttl_ms)"
        )
    if max_remembered is not None:
        _check_above_0("max_remembered", max_remembered, or_else=", or None")
    if ttl_ms is not None and (
        isinstance(ttl_ms, bool)
        or not isinstance(ttl_ms, int | float)
        or not 0 <= ttl_ms < math.inf
    ):
        raise ConfigError(f"ttl_ms is {ttl_ms!r}; it must be milliseconds from 0, or None")


def _check_cache(cache: object) -> None:
    from kp_langchain.scoring.cache import VectorCache

    if not isinstance(cache, VectorCache):
        raise ConfigError(f"cache is a {type(cache).__name__}; expected a VectorCache or None")
