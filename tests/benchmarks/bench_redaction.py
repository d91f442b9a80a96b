"""How much redaction finds, what it spoils, and how fast it is.

    python tests/benchmarks/bench_redaction.py

prints recall by family and false positives on the cases of tests/redaction, which were written for
the kinds that a redactor meets, and times on generated texts. Where a folder `shared/redaction`
with the development corpora and their scorer lies beside the checkout, their table follows.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kp_langchain.redaction import Rules, redact  # noqa: E402
from kp_langchain.redaction.text import harmless_texts  # noqa: E402
from tests.recorded import load, present  # noqa: E402
from tests.redaction.cases import (  # noqa: E402
    BENIGN,
    CONTEXT,
    FORMATS,
    IDENTIFIERS,
    LOOKALIKES,
    NASTY,
    STRUCT,
    left_over,
)

NASTY_CHARS = 100_000
WORD = re.compile(r"[A-Za-z]{3,}")
WORDS = [
    "the",
    "agent",
    "compared",
    "quarterly",
    "figures",
    "found",
    "revenue",
    "grew",
    "while",
    "costs",
    "fell",
    "so",
    "it",
    "asked",
    "another",
    "tool",
    "for",
    "details",
    "about",
    "shipping",
    "orders",
    "customers",
    "regions",
    "prices",
    "and",
    "then",
    "wrote",
    "its",
    "answer",
]


def words_kept(value: Any, done: Any, secret: str) -> float:
    before = Counter(WORD.findall(str(value).replace(secret, " ")))
    after = Counter(WORD.findall(str(done)))
    total = sum(before.values())
    return sum(min(n, after[word]) for word, n in before.items()) / total if total else 1.0


def recall(name: str, cases: Iterable[tuple[str, Any, str]]) -> None:
    found: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    kept = []
    again = 0
    for family, value, secret in cases:
        before = copy.deepcopy(value)
        done = redact(value).value
        assert value == before, "the input was changed"
        seen[family] += 1
        found[family] += not left_over(secret, done)
        kept.append(words_kept(value, done, secret))
        again += redact(done).value != done
    print(
        f"\n{name}: {found.total()} of {seen.total()} = {share(found, seen)}, "
        f"words kept {100 * sum(kept) / len(kept):.1f} %, changed when redacted again: {again}"
    )
    short = [one for one in seen if found[one] < seen[one]]
    print(f"  {len(seen)} families, {len(seen) - len(short)} of them complete")
    for family in sorted(short):
        print(f"  {family}: {found[family]} of {seen[family]}")


def share(found: Counter[str], seen: Counter[str]) -> str:
    return f"{100 * sum(found.values()) / seen.total():.1f} %"


def untouched(name: str, cases: Iterable[tuple[str, Any]]) -> None:
    changed: Counter[str] = Counter()
    listed = list(cases)
    for family, value in listed:
        changed[family] += redact(value).value != value
    print(f"\n{name}: {changed.total()} of {len(listed)} changed = "
          f"{100 * changed.total() / len(listed):.2f} %")  # fmt: skip
    for family, number in sorted(changed.items()):
        if number:
            print(f"  {family}: {number}")


def sentence(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=source.randint(6, 16))).capitalize() + "."


def prose(source: random.Random) -> str:
    return " ".join(sentence(source) for _ in range(source.randint(10, 60)))


def as_json(source: random.Random) -> str:
    rows = [
        {
            "order_id": f"A-{source.randrange(10**6)}",
            "created_at": f"2026-0{source.randint(1, 9)}-11T09:{source.randint(10, 59)}:00Z",
            "total": round(source.uniform(1, 900), 2),
            "note": sentence(source),
            "max_tokens": source.randrange(4096),
        }
        for _ in range(source.randint(5, 25))
    ]
    return json.dumps(rows, indent=source.choice([None, 2]))


def code(source: random.Random) -> str:
    lines = []
    for _ in range(source.randint(10, 60)):
        name, other = source.sample(WORDS, 2)
        lines += [
            f"def {name}_{other}(self, {other}: int = {source.randrange(99)}) -> str:",
            f'    """{sentence(source)}"""',
            f"    return self.{name}[{other}] or token_count({other!r})",
        ]
    return "\n".join(lines)


def traceback_of(source: random.Random) -> str:
    calls = "".join(
        f'  File "/app/{source.choice(WORDS)}.py", line {source.randrange(400)}, in '
        f"{source.choice(WORDS)}\n    {source.choice(WORDS)}({source.choice(WORDS)})\n"
        for _ in range(source.randint(5, 30))
    )
    return f"Traceback (most recent call last):\n{calls}ValueError: {sentence(source)}"


def messages(size: int) -> list[str]:
    source = random.Random(1)
    makers: list[Callable[[random.Random], str]] = [prose, as_json, code, traceback_of]
    made: list[str] = []
    while sum(map(len, made)) < size:
        made.append(source.choice(makers)(source))
    return made


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def speed() -> None:
    small = messages(4_000_000)
    size = sum(len(one.encode()) for one in small) / 1e6
    times = []
    for _ in range(3):
        forget_texts()
        times.append(seconds(lambda: [redact(one) for one in small]))
    print(f"\nordinary text in {len(small)} messages of {1e3 * size / len(small):.1f} KB: "
          f"{size / min(times):.1f} MB/s")  # fmt: skip
    long = "\n\n".join(messages(10_000_000))
    print(
        f"the same as one text of 10 MB: {len(long) / 1e6 / seconds(lambda: redact(long)):.1f} MB/s"
    )
    withheld = long.replace("orders", "bob@example.com")
    took = seconds(lambda: redact(withheld))
    print(f"the same with {withheld.count('@')} addresses: {len(withheld) / 1e6 / took:.1f} MB/s")

    took_by = {}
    for name, make in NASTY:
        text = make(NASTY_CHARS)
        took_by[name] = seconds(lambda text=text: redact(text))  # type: ignore[misc]
    print(f"\n{len(took_by)} texts of {NASTY_CHARS // 1000} KB made to be slow; the slowest:")
    for name, took in sorted(took_by.items(), key=lambda item: -item[1])[:5]:
        print(f"  {1e3 * took:.0f} ms  {name}")


def recorded() -> None:
    """Print how fast the messages of recorded runs are redacted, by source."""
    if not present():
        print("\n(no shared/trajectories beside the checkout: its recorded runs are left out)")
        return
    messages_of: defaultdict[str, list[Any]] = defaultdict(list)
    for run in load():
        messages_of[run["source"]] += run["messages"]
    print("\nmessages of recorded runs, MB of JSON a second of CPU time, best of three:")
    print(f"  {'source':20}{'messages':>9}{'MB':>7}{'aggregated':>12}{'private':>9}")
    total: Counter[str] = Counter()
    for source, found in sorted(messages_of.items()):
        size = sum(len(json.dumps(one, ensure_ascii=False).encode()) for one in found) / 1e6
        took = {level: best_time(found, level) for level in ("aggregated", "private")}
        total.update({"messages": len(found), "MB": size, **took})  # type: ignore[dict-item]
        print(
            f"  {source:20}{len(found):9}{size:7.2f}"
            f"{size / took['aggregated']:12.1f}{size / took['private']:9.1f}"
        )
    print(
        f"  {'all':20}{total['messages']:9}{total['MB']:7.2f}"
        f"{total['MB'] / total['aggregated']:12.1f}{total['MB'] / total['private']:9.1f}"
    )


def best_time(values: list[Any], level: str) -> float:
    """Return the CPU time in seconds of redacting all values anew, the best of three."""
    times = []
    for _ in range(3):
        forget_texts()
        began = time.process_time()
        for value in values:
            redact(value, level=level)
        times.append(time.process_time() - began)
    return min(times)


def forget_texts() -> None:
    """Forget which texts need no redaction, which redaction remembers."""
    for identifiers in (False, True):
        harmless_texts(Rules(), identifiers=identifiers).clear()


def corpora() -> None:
    folder = ROOT.parent / "shared" / "redaction"
    if not (folder / "score.py").exists():
        print("\n(no shared/redaction beside the checkout: its corpora are left out)")
        return
    with tempfile.TemporaryDirectory() as there:
        Path(there, "adapter.py").write_text(
            "from kp_langchain.redaction import redact as _redact\n"
            "def redact(value):\n    return _redact(value).value\n"
            "def secrets(value):\n    return _redact(value, level='private').value\n"
        )
        print("\nthe development corpora, by their own scorer:", flush=True)
        subprocess.run(
            [
                sys.executable, "score.py", "adapter:redact", ".", "--secrets-only",
                "adapter:secrets", "--out", str(Path(there, "result.json")),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{there}"},
            check=False,
        )  # fmt: skip


def main() -> None:
    recall("credentials with a form of their own", FORMATS)
    recall("secrets that their surroundings tell", CONTEXT)
    recall("values under telling names in structures", STRUCT)
    recall("identifiers", IDENTIFIERS)
    untouched("look-alike names", LOOKALIKES)
    untouched("benign texts", BENIGN)
    speed()
    recorded()
    corpora()


if __name__ == "__main__":
    main()
