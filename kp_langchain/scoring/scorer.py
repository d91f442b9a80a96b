"""`Scorer`: from a trace to a score that explains itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from kp_langchain.embedding.embedder import (
    NO_IDENTITY,
    EmbeddedColumns,
    EmbedderIdentity,
    Embedding,
    check_baseline,
    embed_columns,
    embed_texts,
    identity_of,
    report_failure,
    report_not_installed,
)
from kp_langchain.embedding.local_models import LocalModel, resolve_embedder
from kp_langchain.errors import BadEmbeddingError, ConfigError, VectorError, WeightsError
from kp_langchain.novelty_sources import (
    EMPTY_CACHE,
    LEFT_OUT,
    NO_EMBEDDER,
    STILL_LOADING,
    is_measured,
)
from kp_langchain.policy import PROFILES, ScoringWeights
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import Nearest, ScoreBreakdown
from kp_langchain.scoring.dimensions import TraceShape, check_confidence
from kp_langchain.scoring.explanation import NoveltyMeasure, explain_score, source_of
from kp_langchain.scoring.novelty_memory import (
    InProcessMemory,
    Match,
    MemoryEntries,
    MemoryEntry,
    NoveltyMemory,
    check_count,
    report_memory_failure,
    resolve_memory,
)
from kp_langchain.scoring.repeats import embedded_text, fingerprint

if TYPE_CHECKING:
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.score_columns import NoveltyColumns, ScoreColumns
    from kp_langchain.scoring.trace_columns import TraceColumns, TraceSource

TraceLike: TypeAlias = ReasoningTrace | Mapping[str, Any]
WeightsLike: TypeAlias = ScoringWeights | Mapping[str, float]

_CUSTOM = "custom"
_NO_EMBEDDING = Embedding(None, NO_EMBEDDER)
_BUDGET_MS_MAX = 24 * 3600 * 1000.0
_WAITING_SHARE = 0.8  # of the budget; the rest is for the other parts of an evaluation
_Result = TypeVar("_Result")
# Traces that are embedded and compared at once: so many, and fewer if so many are remembered that
# the memory would be locked for seconds.
_BATCH_ROWS, _BATCH_PRODUCTS = 1024, 2**26


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
            longer. For a local model that is still loading, up to 80 % of this are waited; novelty
            is then 0.5, and of the trace only the hash of its text is remembered. None for no
            limit: the model is waited for. An embedder of your own takes the time that it needs.
        max_remembered: How many embeddings it remembers; 1,000 by default. A `cache` has its own
            bounds, so it cannot be combined with this.

    Raises:
        ConfigError: The profiles are no mapping, or the embedder, the cache, its bounds, the
            baseline, the step cap or the budget is unusable.
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
    ) -> None:
        check_count("step_cap", step_cap)
        _check_budget(latency_budget_ms)
        self._memory = resolve_memory(cache, max_remembered)
        self._arguments: dict[str, Any] = {
            "profiles": _check_profiles({} if profiles is None else profiles),
            "embedder": embedder,
            "cache": cache,
            "baseline": baseline,
            "step_cap": step_cap,
            "latency_budget_ms": latency_budget_ms,
            "max_remembered": max_remembered,
        }
        self._profiles = {**PROFILES, **self._arguments["profiles"]}
        self._step_cap = step_cap
        self._latency_budget_ms = latency_budget_ms
        self._embedder = resolve_embedder(embedder)
        self._baseline = None if baseline is None else check_baseline(baseline, "this scorer")
        self._last_embedding: tuple[str, Embedding] | None = None

    def __reduce__(self) -> tuple[partial[Scorer], tuple[()]]:
        # Only the arguments travel to another process; the memory stays in this one.
        return (partial(type(self), **self._arguments), ())

    def with_memory(self, memory: NoveltyMemory, **options: Any) -> Self:
        """Return a scorer that has another memory, and is this one in everything else.

        Args:
            memory: The memory; its bounds take the place of `max_remembered`.
            options: Further arguments of the class that are other ones.
        """
        own = {"cache": memory, "max_remembered": None}
        return type(self)(**self._arguments | own | options)

    @property
    def profiles(self) -> Mapping[str, ScoringWeights]:
        """The weights by domain, including the built-in ones; read-only."""
        return MappingProxyType(self._profiles)

    @property
    def max_remembered(self) -> int:
        """How many traces it remembers at most."""
        return self._memory.max_elements

    @property
    def calls_user_code(self) -> bool:
        """Whether its embedder or its memory is not one of this package."""
        has_own_embedder = self._embedder is None or isinstance(self._embedder, LocalModel)
        has_own_memory = type(self._memory).__module__.startswith("kp_langchain.")
        return not (has_own_embedder and has_own_memory)

    @property
    def loading(self) -> str | None:
        """Which model is being loaded, and from where, in words; None if none is."""
        return self._embedder.loading if isinstance(self._embedder, LocalModel) else None

    def load(self) -> None:
        """Load the embedding model now, so that no evaluation has to wait or do without it.

        For services that load everything before they serve. It does nothing if the model is already
        loaded, or if there is no local model.

        Raises:
            MissingExtraError: No package that runs the model is installed.
            EmbedderError: The model cannot be found, downloaded or loaded.
        """
        if isinstance(self._embedder, LocalModel) and not self._embedder.ready:
            self._embedder.embed(["ready?"])

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until no evaluation has to do without the model because it is still loading.

        Starts to load the model if need be. Any number of threads may wait; a fork does not wait
        for them.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if the model is still loading. True if it is loaded, failed to load, or there is
            no local model: waiting longer would change nothing.
        """
        model = self._embedder
        return not isinstance(model, LocalModel) or model.wait_until_ready(timeout_s)

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
        text = embedded_text(trace)
        embedding = self._embed(text, self._deadline(time.perf_counter()))
        self._call_memory(lambda: self._memory.add(self._entry(text, trace, embedding)))

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
        traces: Iterable[TraceSource] | TraceColumns,
        *,
        weights: WeightsLike | None = None,
    ) -> ScoreColumns:
        """Score traces and remember them, one after the other, but faster: in columns.

        The figures are those of `evaluate` to 1e-6, each trace being compared with those before it,
        and so is what is remembered: the two may be mixed. Texts reach the embedder in batches of
        up to 1,024. If it fails, that batch is evaluated one by one.

        All traces are read before the first is remembered, and held meanwhile as columns, with
        their texts. Of many millions, give some hundred thousand at a time.

        A scorer with a `latency_budget_ms`, or whose memory is no `VectorCache` without `ttl_ms`
        (such as one in a store), measures novelty one by one.

        Args:
            traces: The traces, each a trace, a mapping in wire form, or its JSON as text or bytes.
                Or columns that have been read before.
            weights: Used instead of the domains' profiles, for this call.

        Raises:
            pydantic.ValidationError: A trace is not valid; the message names the field. Nothing has
                been remembered.
            ValueError: A confidence is out of range (in a trace built without validation). Nothing
                has been remembered.
            WeightsError: The weights are unusable. Nothing has been remembered.
            VectorError: As for `score`.
        """
        from kp_langchain.scoring.score_columns import NoveltyColumns
        from kp_langchain.scoring.trace_columns import TraceColumns

        given_weights = None if weights is None else ScoringWeights.of(weights)
        columns = traces if isinstance(traces, TraceColumns) else TraceColumns.of(traces)
        size = max(1, min(_BATCH_ROWS, _BATCH_PRODUCTS // max(1, self.max_remembered)))
        measures = [self._measure_many(columns, rows) for rows in columns.batches(size)]
        return self.score_columns(columns, NoveltyColumns.joined(measures), weights=given_weights)

    def score_columns(
        self, traces: TraceColumns, measure: NoveltyColumns, *, weights: WeightsLike | None = None
    ) -> ScoreColumns:
        """Score traces whose novelty has been measured; nothing is compared or remembered.

        Args:
            traces: The traces.
            measure: Their novelty.
            weights: Used instead of the domains' profiles, for this call.

        Raises:
            WeightsError: The weights are unusable.
        """
        from kp_langchain.scoring.score_columns import ScoreColumns

        given_weights = None if weights is None else ScoringWeights.of(weights)
        return ScoreColumns.of(
            traces,
            measure,
            self._profiles if given_weights is None else {_CUSTOM: given_weights},
            [self._profile_of(domain, given_weights) for domain in traces.domains],
            step_cap=self._step_cap,
            latency_budget_ms=self._latency_budget_ms,
        )

    def embed_many(self, texts: Sequence[str]) -> EmbeddedColumns:
        """Return the embeddings of texts; a model that is loading is waited for.

        It never raises because of the embedder: where that fails, texts are embedded one by one,
        and those that fail again have no vector, with the reason.

        Args:
            texts: The texts, which reach the embedder at once.
        """
        embedded = self._embed_many(texts)
        if embedded is not None:
            return embedded
        import numpy as np

        single = [self._embed(text, None) for text in texts]
        with_vector = [one for one in single if one.vector is not None]
        return EmbeddedColumns(
            np.array([one.vector for one in with_vector]) if with_vector else None,
            [one.problem for one in single],
            [one.unreadable_share for one in single],
            self._identity(with_vector[0].identity if with_vector else NO_IDENTITY),
        )

    def identity(self) -> EmbedderIdentity:
        """Return the embedder that its vectors come from; its model is loaded for that.

        Raises:
            MissingExtraError: No package that runs the model is installed.
            EmbedderError: The model cannot be found, downloaded or loaded.
        """
        self.load()
        embedder = self._embedder
        return NO_IDENTITY if embedder is None else self._identity(identity_of(embedder))

    def entry(self, trace: TraceLike) -> MemoryEntry:
        """Return what a memory compares of the trace and keeps; change nothing.

        The text that was embedded last is not embedded again. Without an embedding, for the reasons
        that `score` gives, the entry has only the hash of the text.

        Args:
            trace: The trace, or a mapping in wire form.

        Raises:
            pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
        """
        trace = ReasoningTrace.model_validate(trace)
        text = embedded_text(trace)
        last = self._last_embedding
        if last is not None and last[0] == text:
            return self._entry(text, trace, last[1])
        embedding = self._embed(text, self._deadline(time.perf_counter()))
        return self._entry(text, trace, embedding)

    def _assess(
        self,
        trace: TraceLike,
        weights: WeightsLike | None,
        ignore: Set[str],
        *,
        remember: bool,
    ) -> ScoreBreakdown:
        started = time.perf_counter()
        trace = ReasoningTrace.model_validate(trace)
        domain, success = trace.metadata.task_domain, trace.metadata.success
        given_weights = None if weights is None else ScoringWeights.of(weights)
        profile, profiles = self._profile_of(domain, given_weights), self._profiles
        check_confidence(confidence := trace.outcome.confidence)  # before anything is remembered
        text = embedded_text(trace)
        entry = MemoryEntry(trace.id, fingerprint(text), domain=domain)
        measure = self._measure(text, entry, ignore, started, remember=remember)
        return explain_score(
            TraceShape.of(trace),
            measure,
            confidence=confidence,
            success=success,
            profile=profile,
            weights=given_weights or profiles[profile],
            step_cap=self._step_cap,
            elapsed_ms=(time.perf_counter() - started) * 1000,
            latency_budget_ms=self._latency_budget_ms,
        )

    def _profile_of(self, domain: str, given_weights: ScoringWeights | None) -> str:
        """Return the name of the weights that count for a domain."""
        if given_weights is not None:
            return _CUSTOM
        return domain if domain in self._profiles else "default"

    def _measure(
        self, text: str, entry: MemoryEntry, ignore: Set[str], started: float, *, remember: bool
    ) -> NoveltyMeasure:
        """Embed the text of a trace, and compare it with the remembered ones.

        Args:
            text: The text.
            entry: What else of the trace a memory compares and keeps.
            ignore: As for `score`.
            started: When scoring began, in seconds of `time.perf_counter`.
            remember: Whether the trace is remembered, too.
        """
        embedding = self._embed(text, self._deadline(started))
        self._last_embedding = text, embedding
        entry = self._with_embedding(entry, embedding)
        nearest, source = self._compare(entry, embedding, ignore, remember=remember)
        return NoveltyMeasure(nearest, source, entry.identity.baseline, embedding.unreadable_share)

    def _compare(
        self, entry: MemoryEntry, embedding: Embedding, ignore: Set[str], *, remember: bool
    ) -> tuple[Nearest | None, str]:
        """Return the most similar remembered trace, if any was compared, and where it comes from.

        The second is as in `ScoreBreakdown.novelty_source`.
        """
        compare = self._memory.compare_then_add if remember else self._memory.compare
        match = self._call_memory(lambda: compare(entry, ignore=ignore))
        if isinstance(match, str):
            return None, match
        source = source_of(
            None if match.nearest is None else match.nearest.similarity,
            is_repeat=match.repeat is not None,
            problem=embedding.problem,
        )
        if source == EMPTY_CACHE and ignore - {entry.trace_id}:
            others = self._call_memory(lambda: self._memory.compare(entry, ignore={entry.trace_id}))
            if isinstance(others, Match) and others.nearest is not None:
                source = LEFT_OUT
        return (match.repeat or match.nearest) if is_measured(source) else None, source

    def _measure_many(self, traces: TraceColumns, rows: slice) -> NoveltyColumns:
        """Embed the texts of some traces, compare each with those before it, and remember them.

        Where they cannot be measured together, or that fails, they are measured one by one, which
        shows which of them failed.
        """
        from kp_langchain.scoring.score_columns import NoveltyColumns

        memory, started = self._memory, time.perf_counter()
        if (
            isinstance(memory, InProcessMemory)
            and memory.takes_many
            and self._latency_budget_ms is None
            and (embedded := self._embed_many(traces.texts[rows])) is not None
        ):
            vector_rows = [row for row, problem in enumerate(embedded.problems) if not problem]
            entries = MemoryEntries(
                traces.trace_ids[rows],
                traces.fingerprints[rows],
                embedded.vectors,
                vector_rows,
                embedded.identity,
            )
            try:
                matches = memory.compare_then_add_many(entries)
            except (VectorError, BadEmbeddingError):
                pass  # nothing has been remembered
            else:
                elapsed_ms = (time.perf_counter() - started) * 1000
                return NoveltyColumns.of_matches(matches, embedded, elapsed_ms)
        measures, times_ms = [], []
        parts = (traces.texts, traces.trace_ids, traces.fingerprints, traces.domains)
        for text, trace_id, digest, domain in zip(*(part[rows] for part in parts), strict=True):
            started = time.perf_counter()
            entry = MemoryEntry(trace_id, digest, domain=domain)
            measures.append(self._measure(text, entry, frozenset(), started, remember=True))
            times_ms.append((time.perf_counter() - started) * 1000)
        return NoveltyColumns.of(measures, times_ms)

    def _call_memory(self, call: Callable[[], _Result]) -> _Result | str:
        """Call the memory; if it fails, as one on a server may, return what failed in words.

        Raises:
            VectorError: The caller's cache does not fit the embedder.
        """
        try:
            return call()
        except VectorError:
            raise
        except BadEmbeddingError as error:
            return report_failure(error).problem
        except Exception as error:  # noqa: BLE001 - any memory may fail in any way
            return report_memory_failure(error)

    def _deadline(self, started: float) -> float | None:
        """Return until when to wait for a loading model; None for no limit."""
        budget_ms = self._latency_budget_ms
        return None if budget_ms is None else started + _WAITING_SHARE * budget_ms / 1000

    def _entry(self, text: str, trace: ReasoningTrace, embedding: Embedding) -> MemoryEntry:
        entry = MemoryEntry(trace.id, fingerprint(text), domain=trace.metadata.task_domain)
        return self._with_embedding(entry, embedding)

    def _with_embedding(self, entry: MemoryEntry, embedding: Embedding) -> MemoryEntry:
        identity = self._identity(embedding.identity)
        return entry._replace(vector=embedding.vector, identity=identity)

    def _identity(self, identity: EmbedderIdentity) -> EmbedderIdentity:
        """Return the identity of an embedder with the baseline of this scorer, if it has one."""
        return identity if self._baseline is None else replace(identity, baseline=self._baseline)

    def _embed_many(self, texts: Sequence[str]) -> EmbeddedColumns | None:
        """Embed texts at once; a model that is loading is waited for.

        Returns:
            The embeddings; None if the embedder failed.
        """
        embedder = self._embedder
        if embedder is None:
            return EmbeddedColumns.none(self._embed("", None).problem, len(texts))
        try:
            if not self.wait_until_ready():
                return None
            embedded = embed_columns(embedder, texts)
        except Exception:  # noqa: BLE001 - any embedder may fail in any way
            return None
        return embedded._replace(identity=self._identity(embedded.identity))

    def _embed(self, text: str, deadline: float | None) -> Embedding:
        """Embed a text; a model that is loading is waited for until a deadline."""
        embedder = self._embedder
        if embedder is None:
            return _NO_EMBEDDING if self._arguments["embedder"] is None else report_not_installed()
        try:
            if isinstance(embedder, LocalModel) and not embedder.ready:
                left_s = None if deadline is None else max(0.0, deadline - time.perf_counter())
                if not embedder.wait_until_ready(left_s):
                    return Embedding(None, STILL_LOADING)
            return embed_texts(embedder, [text])[0]
        except Exception as error:  # noqa: BLE001 - any embedder may fail in any way
            return report_failure(error)


def _check_profiles(profiles: Mapping[str, WeightsLike]) -> dict[str, ScoringWeights]:
    """Return the weights by domain.

    Raises:
        ConfigError: They are no mapping.
        WeightsError: A profile is unusable; the message names it.
    """
    if not isinstance(profiles, Mapping):
        raise ConfigError(f"profiles is {profiles!r:.200}; give a mapping from domain to weights")
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
    if budget_ms is None:
        return
    is_number = isinstance(budget_ms, int | float) and not isinstance(budget_ms, bool)
    if not is_number or not 0 < budget_ms <= _BUDGET_MS_MAX:
        raise ConfigError(
            f"latency_budget_ms is {budget_ms!r}; it must be a number of milliseconds above 0, "
            "at most a day, or None"
        )
