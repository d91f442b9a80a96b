"""`Scorer`: from a trace to a score that explains itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from kp_langchain import novelty_sources
from kp_langchain.embedding.auto_embedder import resolve_embedder
from kp_langchain.embedding.embedder import (
    EmbedderIdentity,
    Embedding,
    LastEmbedding,
    check_baseline,
    embed_texts,
    is_ready,
    report_failure,
    report_not_installed,
)
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.embedding.model_loads import model_loads
from kp_langchain.errors import ConfigError, VectorError, WeightsError
from kp_langchain.policy import PROFILES, ScoringWeights
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.evaluation import Comparison, Evaluation
from kp_langchain.scoring.novelty_memory import (
    Match,
    MemoryEntry,
    NoveltyMemory,
    check_above_0,
    is_number,
    report_memory_failure,
    resolve_memory,
)
from kp_langchain.scoring.repeats import embedded_text, fingerprint

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedder
    from kp_langchain.scoring.cache import VectorCache

TraceLike: TypeAlias = ReasoningTrace | Mapping[str, Any]
WeightsLike: TypeAlias = ScoringWeights | Mapping[str, float]

_CUSTOM = "custom"
_NO_EMBEDDING = Embedding(None, novelty_sources.NO_EMBEDDER)
_BUDGET_MS_MAX = 24 * 3600 * 1000.0
_WAITING_SHARE = 0.8  # of the budget; the rest is for the other parts of an evaluation
_Result = TypeVar("_Result")


class Scorer:
    """Scores traces with its own profiles, embedder and memory.

    Scoring and remembering are two operations: `score` changes nothing, `remember` adds the
    trace's embedding to the memory, `evaluate` does both and embeds once. All may be called from
    any thread; if two threads evaluate the same text at the same time, only one of them finds it
    new. An exact repeat of a remembered text has novelty 0, with an embedder or without, whatever
    its language.

    An error of the embedder never reaches the caller: novelty is then 0.5, the breakdown says why,
    and the logger `kp_langchain` gets one warning per process and kind of failure. The next trace
    uses the embedder again (`LocalModel` limits how often a model is loaded again).

    Args:
        profiles: Weights by domain, added to the built-in `PROFILES` or replacing some of them.
        embedder: `"auto"` for all-MiniLM-L6-v2 if installed, None for no embedder, a LangChain
            `Embeddings`, or anything with `embed(texts)` that returns an array (n, dimensions).
        cache: Where embeddings are remembered, or a `NoveltyMemory` of another kind. By default a
            `VectorCache` of 1,000 vectors of the embedder's length.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1; novelty is
            counted from there. By default the embedder's attribute `baseline`, else 0.
        step_cap: Complexity counts at most this many steps (the documents' prose says 20); None
            counts all, as the documents' formula does.
        latency_budget_ms: Milliseconds that an evaluation may take; the breakdown says if it took
            longer. While the embedder's model is still to load (its attribute `ready` is False),
            the first evaluation waits for it up to 80 % of this, and further ones do not wait:
            novelty is then 0.5, and of the trace only the hash of its text is remembered. None for
            no limit: the first evaluation waits until the model is loaded.
        max_remembered: How many embeddings it remembers; 1,000 by default. A `cache` has its own
            bounds, so it cannot be combined with this or with `ttl_ms`.
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
        cache: VectorCache | NoveltyMemory | None = None,
        baseline: float | None = None,
        step_cap: int | None = None,
        latency_budget_ms: float | None = None,
        max_remembered: int | None = None,
        ttl_ms: float | None = None,
    ) -> None:
        if step_cap is not None:
            check_above_0("step_cap", step_cap, alternative=", or None")
        _check_budget(latency_budget_ms)
        self._memory = resolve_memory(cache, max_remembered, ttl_ms)
        self._arguments: dict[str, Any] = {
            "profiles": _check_profiles(profiles or {}),
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
        self._last_embedding = LastEmbedding()

    def __reduce__(self) -> tuple[partial[Scorer], tuple[()]]:
        # Only the arguments travel to another process; the memory stays in this one.
        return (partial(type(self), **self._arguments), ())

    def with_memory(self, memory: NoveltyMemory) -> Self:
        """Return a scorer that has another memory, and is this one in everything else.

        Args:
            memory: The memory; its bounds take the place of `max_remembered` and `ttl_ms`.
        """
        changes = {"cache": memory, "max_remembered": None, "ttl_ms": None}
        return type(self)(**self._arguments | changes)

    @property
    def profiles(self) -> Mapping[str, ScoringWeights]:
        """The weights by domain, including the built-in ones; read-only."""
        return MappingProxyType(self._profiles)

    @property
    def max_remembered(self) -> int:
        """How many traces it remembers at most."""
        return self._memory.max_elements

    @property
    def has_embedder(self) -> bool:
        """Whether it compares texts by their meaning, rather than only finding exact repeats."""
        return self._embedder is not None

    @property
    def calls_user_code(self) -> bool:
        """Whether its embedder or its memory is not one of this package."""
        has_own_embedder = self._embedder is None or isinstance(self._embedder, LocalModel)
        has_own_memory = type(self._memory).__module__.startswith("kp_langchain.")
        return not (has_own_embedder and has_own_memory)

    def load(self) -> None:
        """Load the embedding model now, so that no evaluation has to wait or do without it.

        For services that load everything before they serve. It does nothing if the model is already
        loaded, or if there is no model to load.

        Raises:
            MissingExtraError: No package that runs the model is installed.
            EmbedderError: The model cannot be found, downloaded or loaded.
        """
        if self._embedder is None or is_ready(self._embedder):
            return
        load = model_loads.of(self._embedder)
        if load is not None and load.wait(None) and load.future.done():
            load.future.result()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until no evaluation has to do without the model because it is still loading.

        Starts to load the model if need be, on a thread of its own. Any number of threads may
        wait; a fork does not wait for them.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if the model is still loading. True if it is loaded, failed to load, or there is
            no model to load: waiting longer would change nothing.
        """
        if self._embedder is None or is_ready(self._embedder):
            return True
        load = model_loads.of(self._embedder)
        return load is None or load.wait(timeout_s)

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
            ignore: Ids of remembered traces that are not compared with this one.

        Raises:
            pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
            ValueError: The confidence is out of range (in a trace built without validation).
            WeightsError: The weights are unusable.
            VectorError: The cache given to this scorer has vectors of another length than the
                embedder's, or those of another embedder.
        """
        return self._assess(trace, weights, ignore, remember=False)

    def remember(self, trace: TraceLike) -> None:
        """Add the trace's embedding and the hash of its text to the memory, under the trace's id.

        If the embedder fails, or its model cannot read the text, only the hash is added: an exact
        repeat still has novelty 0. A model that is still loading is not waited for beyond the
        latency budget; the embedding is then added later.

        Args:
            trace: The trace, or a mapping in wire form.

        Raises:
            pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
            VectorError: As for `score`.
        """
        trace = ReasoningTrace.model_validate(trace)
        text, deadline = embedded_text(trace), self._deadline(time.perf_counter())
        embedding = self._embed(text, deadline)
        self._call_memory(self._memory.add, text, trace, embedding, None)

    def evaluate(
        self,
        trace: TraceLike,
        *,
        weights: WeightsLike | None = None,
        ignore: Set[str] = frozenset(),
    ) -> ScoreBreakdown:
        """Score a trace, then remember it; arguments and errors are those of `score`."""
        return self._assess(trace, weights, ignore, remember=True)

    def entry(self, trace: TraceLike) -> MemoryEntry:
        """Return what a memory compares of the trace and keeps; change nothing.

        If this thread has just scored the trace, its text is not embedded again. Without an
        embedding, for the reasons that `score` gives, the entry has only the hash of the text.

        Args:
            trace: The trace, or a mapping in wire form.

        Raises:
            pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
        """
        trace = ReasoningTrace.model_validate(trace)
        text = embedded_text(trace)
        embedding = self._last_embedding.of(text)
        if embedding is None:
            deadline = self._deadline(time.perf_counter())
            embedding = self._embed(text, deadline)
        return self._entry(text, trace, embedding)

    def evaluate_many(
        self,
        traces: Iterable[TraceLike],
        *,
        weights: WeightsLike | None = None,
        ignore: Set[str] = frozenset(),
        batch_size: int = 256,
    ) -> Iterator[ScoreBreakdown]:
        """Evaluate one trace after the other, faster: embedded and remembered a batch at a time.

        The scores, the nearest traces and the memory afterwards are those of `evaluate`. No more
        than one batch is held, so `traces` may be endless. If iteration stops in the middle of a
        batch, the rest of the batch has been remembered. Iteration ends with the error of a trace
        that `evaluate` refuses, after the breakdowns of those before it. There is no latency
        budget: evaluation waits for the model.

        Args:
            traces: The traces, or mappings in wire form.
            weights: Used instead of the domains' profiles.
            ignore: Ids of remembered traces that are not compared with these. With any, traces are
                taken one at a time.
            batch_size: How many traces to take at a time.

        Returns:
            The breakdowns, in order; `elapsed_ms` is a trace's share of the time of its batch.

        Raises:
            ConfigError: The batch size is not a whole number above 0.
            WeightsError: The weights are unusable.
        """
        check_above_0("batch_size", batch_size)
        weights = None if weights is None else ScoringWeights.of(weights)
        # Whether only ignored traces were remembered depends on what came before each.
        return self._evaluate_batches(iter(traces), weights, ignore, 1 if ignore else batch_size)

    def _evaluate_batches(
        self,
        traces: Iterator[TraceLike],
        weights: WeightsLike | None,
        ignore: Set[str],
        batch_size: int,
    ) -> Iterator[ScoreBreakdown]:
        while True:
            started = time.perf_counter()
            batch: list[Evaluation] = []
            failure: Exception | None = None
            try:
                for trace in islice(traces, batch_size):
                    batch.append(self._begin(trace, weights))  # noqa: PERF401 - kept on an error
            except Exception as error:  # noqa: BLE001 - raised after the traces before it
                failure = error
            yield from self._evaluate_batch(batch, ignore, started)
            if failure is not None:
                raise failure
            if len(batch) < batch_size:
                return

    def _evaluate_batch(
        self, batch: Sequence[Evaluation], ignore: Set[str], started: float
    ) -> Iterator[ScoreBreakdown]:
        comparisons: Iterable[Comparison]
        try:
            comparisons = [] if ignore else self._compare_batch([one.trace for one in batch])
        except Exception:  # noqa: BLE001 - one by one shows which trace fails, and why
            comparisons = []
        if not comparisons:
            comparisons = (
                self._compare(one.trace, ignore, remember=True, deadline=None) for one in batch
            )
        share_s = (time.perf_counter() - started) / max(1, len(batch))
        for evaluation, comparison in zip(batch, comparisons, strict=True):
            yield evaluation.breakdown(
                comparison,
                step_cap=self._step_cap,
                started=time.perf_counter() - share_s,
                budget_ms=None,
            )

    def _assess(
        self,
        trace: TraceLike,
        weights: WeightsLike | None,
        ignore: Set[str],
        *,
        remember: bool,
    ) -> ScoreBreakdown:
        started = time.perf_counter()
        evaluation = self._begin(trace, weights)
        deadline = self._deadline(started)
        comparison = self._compare(evaluation.trace, ignore, remember=remember, deadline=deadline)
        return evaluation.breakdown(
            comparison, step_cap=self._step_cap, started=started, budget_ms=self._latency_budget_ms
        )

    def _deadline(self, started: float) -> float | None:
        """Return until when to wait for a loading model; None for no limit."""
        budget_ms = self._latency_budget_ms
        return None if budget_ms is None else started + _WAITING_SHARE * budget_ms / 1000

    def _begin(self, trace: TraceLike, weights: WeightsLike | None) -> Evaluation:
        trace = ReasoningTrace.model_validate(trace)
        if weights is not None:
            return Evaluation.of(trace, _CUSTOM, ScoringWeights.of(weights))
        domain = trace.metadata.task_domain
        profile = domain if domain in self._profiles else "default"
        return Evaluation.of(trace, profile, self._profiles[profile])

    def _compare(
        self, trace: ReasoningTrace, ignore: Set[str], *, remember: bool, deadline: float | None
    ) -> Comparison:
        def compare(entry: MemoryEntry) -> tuple[Match, bool]:
            if remember:
                match = self._memory.compare_then_add([entry], ignore=ignore)[0]
            else:
                match = self._memory.compare(entry, ignore=ignore)
            if match.nearest is not None or entry.vector is None or not ignore - {trace.id}:
                return match, False
            nearest = self._memory.compare(entry, ignore={trace.id}).nearest
            return match, nearest is not None and nearest.trace_id in ignore

        text = embedded_text(trace)
        embedding = self._embed(text, deadline)
        self._last_embedding.set(text, embedding)
        nothing = Match(None, None), False
        embedding, (match, left_out) = self._call_memory(compare, text, trace, embedding, nothing)
        baseline = self._identity(embedding).baseline
        return Comparison.of(embedding, match, baseline, left_out=left_out)

    def _compare_batch(self, traces: Sequence[ReasoningTrace]) -> list[Comparison]:
        """Do what `_compare` does for each trace, but raise the errors of embedder and memory."""
        texts = [embedded_text(trace) for trace in traces]
        if self._embedder is None:
            embeddings = [self._no_embedding()] * len(texts)
        else:
            embeddings = embed_texts(self._embedder, texts)
        entries = [
            self._entry(text, trace, embedding)
            for text, trace, embedding in zip(texts, traces, embeddings, strict=True)
        ]
        matches = self._memory.compare_then_add(entries)
        return [
            Comparison.of(embedding, match, self._identity(embedding).baseline)
            for embedding, match in zip(embeddings, matches, strict=True)
        ]

    def _call_memory(
        self,
        call: Callable[[MemoryEntry], _Result],
        text: str,
        trace: ReasoningTrace,
        embedding: Embedding,
        otherwise: _Result,
    ) -> tuple[Embedding, _Result]:
        """Call the memory with a trace's entry, again without the vector if that one is refused.

        Args:
            call: Calls the memory.
            text: The trace's text.
            trace: The trace.
            embedding: The embedding of the text.
            otherwise: What to return for the call if the memory fails, as one on a server may.

        Returns:
            The embedding that the memory accepted, or why there is none; and what the call
            returned.
        """
        entry = self._entry(text, trace, embedding)
        try:
            return embedding, call(entry)
        except VectorError:  # the caller's cache does not fit the embedder
            raise
        except Exception as error:  # noqa: BLE001 - any memory may fail in any way
            failure = error
        if entry.vector is not None:
            try:
                result = call(entry._replace(vector=None))
            except Exception as error:  # noqa: BLE001 - it is not the vector
                failure = error
            else:
                return report_failure(failure), result
        return report_memory_failure(failure), otherwise

    def _entry(self, text: str, trace: ReasoningTrace, embedding: Embedding) -> MemoryEntry:
        identity, domain = self._identity(embedding), trace.metadata.task_domain
        return MemoryEntry(trace.id, fingerprint(text), embedding.vector, identity, domain)

    def _identity(self, embedding: Embedding) -> EmbedderIdentity:
        if self._baseline is None:
            return embedding.identity
        return replace(embedding.identity, baseline=self._baseline)

    def _embed(self, text: str, deadline: float | None) -> Embedding:
        """Embed a text; a loading model is waited for until a deadline."""
        if self._embedder is None:
            return self._no_embedding()
        try:
            if not is_ready(self._embedder) and not self._wait_for_model(self._embedder, deadline):
                return Embedding(None, novelty_sources.STILL_LOADING)
            return embed_texts(self._embedder, [text])[0]
        except Exception as error:  # noqa: BLE001 - any embedder may fail in any way
            return report_failure(error)

    def _wait_for_model(self, embedder: Embedder, deadline: float | None) -> bool:
        """Return whether a model is loaded in time; raise the error of a load that fails."""
        load = model_loads.of(embedder)
        if load is None:
            return False
        left_s = None if deadline is None else max(0.0, deadline - time.perf_counter())
        # Only the first evaluation waits: a worker that waited with each would fall behind.
        if load.is_overdue and deadline is not None:
            left_s = 0.0
        if load.wait(left_s) and load.future.done():
            load.future.result()
            return True
        load.is_overdue = True
        return False

    def _no_embedding(self) -> Embedding:
        if self._arguments["embedder"] is None:
            return _NO_EMBEDDING
        return report_not_installed()


def _check_profiles(profiles: Mapping[str, WeightsLike]) -> dict[str, ScoringWeights]:
    """Return the weights by domain.

    Raises:
        WeightsError: `profiles` is not a mapping, or a profile is unusable; the message names it.
    """
    if not isinstance(profiles, Mapping):
        raise WeightsError(f"profiles is a {type(profiles).__name__}; give a mapping from domain")
    weights_by_domain = {}
    for domain, weights in profiles.items():
        try:
            weights_by_domain[domain] = ScoringWeights.of(weights)
        except WeightsError as error:
            raise WeightsError(f"profile {domain!r}: {error}") from error
    return weights_by_domain


def _check_budget(budget_ms: float | None) -> None:
    """Check a latency budget in milliseconds; None for no limit.

    Raises:
        ConfigError: It is not a number above 0, at most a day.
    """
    if budget_ms is not None and not (is_number(budget_ms) and 0 < budget_ms <= _BUDGET_MS_MAX):
        raise ConfigError(
            f"latency_budget_ms is {budget_ms!r}; it must be a number of milliseconds above 0, "
            "at most a day, or None"
        )
