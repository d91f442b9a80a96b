"""Compare what the outside sees with the golden files: `python -m tests.golden`.

    python -m tests.golden                     shows what differs; exit status 1 if anything does
    python -m tests.golden --accept            shows it, and takes it for right from now on
    python -m tests.golden --only recall       one source, by the beginning of its name

A golden file has a hash for each case, and the full text of at most 100. Where it has only the
hash, `--dump FILE` in a worktree of an earlier commit tells the text before.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from tests.golden.seen import normal, short_hash

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
SAMPLE = 100
_MOST_SHOWN = 20  # cases whose difference is printed
_MOST_LINES = 40  # of one case
_MOST_CHARS = 600  # of a case that is new, or gone


@dataclass(frozen=True)
class Source:
    """Cases of one kind.

    Args:
        name: Its name, and that of its file.
        make: Returns the name of each case, and what was seen.
        missing: What it needs and this machine lacks.
        sample: Of how many cases the file has the full text; none where it may not be kept here.
    """

    name: str
    make: Callable[[], Iterable[tuple[str, Any]]]
    missing: str = ""
    sample: int = SAMPLE

    @property
    def file(self) -> Path:
        return DATA / f"{self.name}.json"


def sources(every: int = 1) -> list[Source]:
    """Return all sources.

    Args:
        every: Of the recorded runs, play each chunk, or only each second and so on.
    """
    from tests import recorded

    beside = {"sample": 0, "missing": "" if recorded.present() else "../shared"}
    learning = {"missing": "" if find_spec("sklearn") else "scikit-learn"}
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "situations": ("cases.of_situations", {}),
        "answers": ("cases.of_answers", {}),
        "verdicts": ("stored.of_verdicts", {}),
        "support_desk": ("stored.of_support_desk", learning),
        "recall": ("stored.of_recall", {}),
        "scores": ("cases.of_scores", {}),
        "imports": ("cases.of_imports", {}),
        "redaction": ("cases.of_redaction", {"sample": 20}),
        "corpora": ("cases.of_redaction_corpora", beside),
        "recorded_runs": ("cases.of_recorded_runs", beside),
    }
    options = {"recorded_runs": {"every": every}}
    return [
        Source(name, partial(_call, function, **options.get(name, {})), **more)
        for name, (function, more) in made.items()
    ]


def _call(function: str, **options: Any) -> Iterable[tuple[str, Any]]:
    """Import a module of this package when it is needed, so that one that fails stops no other."""
    module, _, name = function.partition(".")
    cases: Iterable[tuple[str, Any]] = getattr(import_module(f"tests.golden.{module}"), name)(
        **options
    )
    return cases


def made_now(source: Source) -> dict[str, Any]:
    """Return the cases of a source, in their normal form."""
    cases: dict[str, Any] = {}
    for name, value in source.make():
        if name in cases:
            raise ValueError(f"{source.name} has two cases {name!r}, and would hold only the last")
        cases[name] = normal(value)
    return cases


@dataclass(frozen=True)
class Golden:
    """What a golden file holds.

    Args:
        hashes: Of every case, by name.
        sample: The normal form of some.
    """

    hashes: dict[str, str]
    sample: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> Golden:
        return cls(**json.loads(file.read_text())) if file.exists() else cls({}, {})

    @classmethod
    def of(cls, cases: Mapping[str, Any], *, sample: int) -> Golden:
        """Hold cases, and of so many the text: the first of them, and others evenly."""
        step = max(1, len(cases) // sample) if sample else 1
        names = list(islice(islice(cases, 0, None, step), sample))
        return cls(
            {name: short_hash(value) for name, value in cases.items()},
            {name: cases[name] for name in names},
        )

    def write(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        parts = (f'"{name}": {_a_line_each(getattr(self, name))}' for name in ("hashes", "sample"))
        file.write_text(f"{{{', '.join(parts)}}}\n")


def _a_line_each(members: Mapping[str, Any]) -> str:
    write = partial(json.dumps, ensure_ascii=False)
    lines = (f"{write(name)}: {write(value)}" for name, value in members.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def changed(golden: Golden, now: Mapping[str, Any], *, is_part: bool = False) -> list[str]:
    """Return the names of cases that differ, are new, or are gone.

    Args:
        golden: What is held for right.
        now: The cases in their normal form.
        is_part: Whether only a part of the cases was made, so that others are not gone.
    """
    gone = [] if is_part else [name for name in golden.hashes if name not in now]
    return [
        name for name, value in now.items() if golden.hashes.get(name) != short_hash(value)
    ] + gone


def difference(name: str, was: Any, now: Any, *, is_new: bool) -> str:
    """Return in words how a case differs."""
    if was is None or now is None:
        known = "gone" if now is None else "new" if is_new else "another, without its text before"
        return f"--- {name}: {known}\n{_pretty(was if now is None else now)[:_MOST_CHARS]}"
    lines = list(
        difflib.unified_diff(
            _pretty(was).splitlines(), _pretty(now).splitlines(), "before", "now", lineterm="", n=2
        )
    )
    more = len(lines) - _MOST_LINES
    rest = [f"... {more} more lines"] if more > 0 else []
    return "\n".join([f"--- {name}", *lines[2:_MOST_LINES], *rest])


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def compare(source: Source, *, accept: bool = False, least: float = 1.0) -> bool:
    """Print what differs in a source, and accept it if asked to; return whether something does.

    Args:
        source: The source.
        accept: Whether its cases are held for right from now on.
        least: The part of the known cases that has to be made. Below 1, those that were not made
            are not gone.
    """
    now = made_now(source)
    golden = Golden.read(source.file)
    names = changed(golden, now, is_part=least < 1)
    print(f"{source.name}: {len(now)} cases, {len(names)} differ", flush=True)
    if too_few := len(now) < least * len(golden.hashes) and least < 1:
        print(f"{source.name}: only {len(now)} of {len(golden.hashes)} cases could be made")
    if names:
        shown = names[:_MOST_SHOWN]
        for name in shown:
            is_new = name not in golden.hashes
            print(difference(name, golden.sample.get(name), now.get(name), is_new=is_new))
        if len(names) > len(shown):
            print(f"... and {len(names) - len(shown)} more cases")
    if accept:
        Golden.of(now, sample=source.sample).write(source.file)
    return bool(names) or too_few


@contextmanager
def isolated() -> Iterator[None]:
    """Default settings, empty folders, and no network for model hubs."""
    for name in list(os.environ):
        if name.startswith(("KP_", "LANGSMITH_", "LANGCHAIN_")):
            del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "XDG_DATA_HOME": f"{folder}/data", "XDG_CONFIG_HOME": f"{folder}/config",
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "KP_FUNCTION_TIMEOUT_S": "600",
        }  # fmt: skip
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what the outside sees with before.")
    parser.add_argument("--accept", action="store_true", help="take what is seen for right")
    parser.add_argument("--only", default="", help="the beginning of a source's name")
    parser.add_argument(
        "--every", type=int, default=1, help="play each N-th chunk of recorded runs"
    )
    parser.add_argument(
        "--part",
        action="store_true",
        help="what releases installed here cannot play is not missing",
    )
    parser.add_argument("--dump", type=Path, help="write the cases of one source to this file")
    options = parser.parse_args()
    if options.accept and (options.part or options.every > 1):
        parser.error("--accept needs all cases; leave --every and --part out")
    with isolated():
        chosen = [one for one in sources(options.every) if one.name.startswith(options.only)]
        if options.dump:
            options.dump.write_text(json.dumps(made_now(chosen[0])))
            return
        differs = False
        for source in chosen:
            if source.missing:
                print(f"{source.name}: left out, as {source.missing} is not on this machine")
                continue
            least = 0.5 / options.every if options.part or options.every > 1 else 1.0
            differs |= compare(source, accept=options.accept, least=least)
    sys.exit(differs and not options.accept)


if __name__ == "__main__":
    main()
