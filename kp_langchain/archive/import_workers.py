"""Workers that embed the runs of an import, ahead of the process that records them.

Nearly all time of an import goes to the embedding model. So workers replay and redact groups of
runs, and return the vectors of their texts. The process of the command records all runs itself, in
their order, as it does without workers; it only need not compute these vectors. A text that differs
there, because an earlier run named a secret in it, is embedded there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kp_langchain.archive.engines import Engine, MapBlocks, opened
from kp_langchain.archive.rows import Tools, unpacked
from kp_langchain.archive.run import tools_of
from kp_langchain.archive.runs import RunReader
from kp_langchain.embedding.local_models import AutoEmbedder
from kp_langchain.scoring.repeats import embedded_text

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.importing.importer import Importer
    from kp_langchain.importing.recorded_run import RecordedRun

log = logging.getLogger("kp_langchain")

_GROUP_RUNS = 50  # a worker needs five seconds for them, and its answer is small
_Vectors: TypeAlias = Mapping[str, NDArray[np.float32]]


class KnownVectors(AutoEmbedder):
    """The model of the settings, and vectors that others computed with it.

    Attributes:
        known: Texts with their vectors, for which the model is not run.
    """

    known: _Vectors = MappingProxyType({})

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text; errors are those of `LocalModel.embed`."""
        if texts and all(text in self.known for text in texts):
            return np.array([self.known[text] for text in texts])
        return super().embed(texts)


@contextmanager
def embedding_ahead(
    importer: Importer, settings: Settings, engine: Engine = "local", workers: int = 1
) -> Iterator[Callable[[Iterable[RecordedRun]], Iterable[RecordedRun]]]:
    """Yield what takes runs on their way to an importer, and has workers embed them ahead.

    Args:
        importer: The importer.
        settings: Its settings.
        engine: What the workers are started by.
        workers: How many there are; one of the engine `local` is no worker, but this process.

    Raises:
        MissingExtraError: What runs the model, or the engine, is not installed.
        EmbedderError: The model cannot be found, downloaded or loaded.
    """
    if engine == "local" and workers == 1:
        yield lambda runs: runs
        return
    with opened(engine, workers) as map_blocks:
        embedder = KnownVectors()
        tools = tools_of(settings, identity=importer.use_embedder(embedder)).packed()
        yield partial(_embedded_ahead, importer, embedder, tools, map_blocks)


def _embedded_ahead(
    importer: Importer,
    embedder: KnownVectors,
    tools: bytes,
    map_blocks: MapBlocks,
    runs: Iterable[RecordedRun],
) -> Iterator[RecordedRun]:
    rest = iter(runs)
    waiting: deque[list[RecordedRun]] = deque()

    def new_runs() -> Iterator[list[RecordedRun]]:
        while group := list(islice(rest, _GROUP_RUNS)):
            waiting.append(group)
            yield [run for run in group if not importer.is_known(run)]

    for vectors in map_blocks(partial(embed_runs, tools), new_runs(), in_order=True):
        embedder.known = vectors  # all runs before are stored
        yield from waiting.popleft()


def embed_runs(tools: bytes, runs: Iterable[RecordedRun]) -> _Vectors:
    """Return the vectors of the texts of runs, as far as they can be read and embedded.

    Args:
        tools: `Tools.packed`.
        runs: The runs.

    Raises:
        KPError: The embedder is not the one that is expected.
    """
    log.disabled = True  # whoever records the runs warns of the same
    try:
        return _vectors_of(unpacked(tools), runs)
    finally:
        log.disabled = False


def _vectors_of(own: Tools, runs: Iterable[RecordedRun]) -> _Vectors:
    reader = RunReader(own.settings, own.read_at)
    texts: dict[str, None] = {}
    for run in runs:
        with suppress(Exception):  # whoever records the run says why
            texts[embedded_text(reader.read(run)[0])] = None
    embedded = own.scorer.embed_many([*texts])
    own.check_embedded(embedded)
    if embedded.vectors is None:
        return {}
    readable = [text for text, problem in zip(texts, embedded.problems, strict=True) if not problem]
    return dict(zip(readable, embedded.vectors, strict=True))
