"""How often the last tool call of a run counts as failed, and how often such runs are right.

    python -m tests.benchmarks.quality.failed_calls [FILE ...]

Prints a table in Markdown, by source. The files are those of `tests.benchmarks.quality`; by default
both files of recorded runs are taken, where they lie beside the checkout: half a minute.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from kp_langchain.calibration.features import features_of
from tests.benchmarks.quality import runs
from tests.recorded import FOLDER

HEAD = (
    "| source | runs | last call failed | of these right | of the others right | AUC of success |"
)


def main(files: list[Path]) -> None:
    """Print the table of the runs in `files`."""
    by_source: dict[str, list[tuple[bool, runs.Run]]] = defaultdict(list)
    found = runs.read(files, lambda line: print(line, file=sys.stderr), "meta.task_id")
    for run in found.labelled:
        looked = run.trace.metadata.success
        features = features_of(run.trace, looked_successful=looked, proves_failure=False)
        by_source[run.source].append((features["last_observation_fails"] == 1, run))
    print(HEAD, "| --- | ---: | ---: | ---: | ---: | ---: |", sep="\n")
    for source, pairs in by_source.items():
        failed = [run.success for fails, run in pairs if fails]
        others = [run.success for fails, run in pairs if not fails]
        looks = {
            truth: [run.trace.metadata.success for _, run in pairs if run.success is truth]
            for truth in (True, False)
        }
        # Of a number with two values, this is the chance that it is higher for a right run.
        auc = (
            f"{0.5 + (fmean(looks[True]) - fmean(looks[False])) / 2:.3f}"
            if all(looks.values())
            else ""
        )
        share = f"{len(failed) / len(pairs):.1%}".replace("%", " %")
        print(f"| {source} | {len(pairs)} | {share} | {_rate(failed)} | {_rate(others)} | {auc} |")


def _rate(right: list[bool]) -> str:
    return f"{sum(right) / len(right):.2f}" if right else ""


if __name__ == "__main__":
    main(
        [Path(name) for name in sys.argv[1:]]
        or [FOLDER / "runs.jsonl.gz", FOLDER / "runs2.jsonl.gz"]
    )
