"""The plan of an archive: blocks of consecutive rows, and what of earlier blocks each needs.

The plan is written first, so that the same command continues what was interrupted, and a command
that would give other results is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple, Self

from kp_langchain.archive.files import Storage
from kp_langchain.archive.sources import Kind, Part
from kp_langchain.errors import KPError
from kp_langchain.text import one_line

PLAN_FILE = "_work/plan.json"
_VERSION = 1
_SHOWN_CHARS = 300


class Block(NamedTuple):
    """Consecutive rows of one file.

    Attributes:
        number: Its place among all blocks, from 0.
        file: The file.
        kind: How that is read.
        part: Which rows of it.
    """

    number: int
    file: str
    kind: Kind
    part: Part


class FileParts(NamedTuple):
    """How a file is divided into blocks.

    Attributes:
        number: Its place among all files.
        kind: How it is read.
        parts: Its parts, a block each.
    """

    number: int
    kind: Kind
    parts: list[Part]


class BlockCounts(NamedTuple):
    """How many rows of a block are remembered.

    Attributes:
        number: The block.
        rows: How many have a fingerprint: all that have a trace.
        vectors: How many have a vector.
    """

    number: int
    rows: int
    vectors: int


class Halo(NamedTuple):
    """The blocks that hold what is remembered before a block; the newest rows of them count.

    Attributes:
        number: The block.
        row_blocks: The blocks with the last remembered fingerprints before it, in order.
        vector_blocks: The blocks with the last remembered vectors.
    """

    number: int
    row_blocks: tuple[int, ...]
    vector_blocks: tuple[int, ...]


def halos(counts: Sequence[BlockCounts], window: int) -> Iterator[Halo]:
    """Yield what each block needs of those before it.

    Args:
        counts: What each block remembers, in order.
        window: How many remembered rows, and vectors, each row is compared with.
    """
    rows = [*accumulate((one.rows for one in counts), initial=0)]
    vectors = [*accumulate((one.vectors for one in counts), initial=0)]
    first_row = first_vector = 0
    for at, count in enumerate(counts):
        # The first block that is not yet outside of the window; it never moves back.
        while rows[first_row + 1] <= rows[at] - window:
            first_row += 1
        while vectors[first_vector + 1] <= vectors[at] - window:
            first_vector += 1
        yield Halo(
            count.number,
            tuple(one.number for one in counts[first_row:at] if one.rows),
            tuple(one.number for one in counts[first_vector:at] if one.vectors),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is scored, and how.

    Attributes:
        files: The name and size in bytes of each file, in order.
        block_rows: How many lines or rows a block has at most; a file of spans is one block.
        settings: The settings that the result depends on, by name.
        read_at: The time of runs that state none.
        parts: How each file is divided.
        summary: What became of all rows, once all is done.
    """

    files: list[tuple[str, int]]
    block_rows: int
    settings: Mapping[str, Any]
    read_at: datetime
    parts: list[FileParts]
    summary: Mapping[str, Any] | None = None

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in order."""
        parts = [(one, part) for one in self.parts for part in one.parts]
        return [
            Block(number, self.files[one.number][0], one.kind, part)
            for number, (one, part) in enumerate(parts)
        ]

    def to_json(self) -> bytes:
        """Return it as it is written."""
        return json.dumps(
            {"version": _VERSION, **asdict(self), "read_at": self.read_at.isoformat()}
        ).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Return the plan that `to_json` wrote.

        Raises:
            ValueError, LookupError, TypeError: Something else wrote it.
        """
        fields = json.loads(content)
        if fields.pop("version") != _VERSION:
            raise ValueError("another version")
        fields["files"] = [(name, size) for name, size in fields["files"]]
        fields["parts"] = [
            FileParts(number, kind, [Part(*part) for part in parts])
            for number, kind, parts in fields["parts"]
        ]
        return cls(**fields | {"read_at": datetime.fromisoformat(fields["read_at"])})


def plan_of(
    storage: Storage,
    files: Sequence[str],
    *,
    block_rows: int,
    settings: Mapping[str, Any],
    split: Callable[[Sequence[str]], list[FileParts]],
) -> Plan:
    """Return the plan that is there already, or make and write one.

    Args:
        storage: Where the results go.
        files: The files, in order.
        block_rows: How many rows a block has at most.
        settings: The settings that the result depends on, by name.
        split: Divides the files.

    Raises:
        KPError: A file cannot be read, or another plan is there; the message says what differs.
    """
    sizes = [(file, storage.size_of(file)) for file in files]
    settings = json.loads(json.dumps(settings))
    content = storage.read(PLAN_FILE)
    if content is not None:
        try:
            plan = Plan.from_json(content)
        except (ValueError, LookupError, TypeError) as error:
            raise KPError(
                f"{storage.url}/{PLAN_FILE} cannot be read ({error}); remove {storage.url}, or "
                "name another destination"
            ) from error
        _check_same(storage, plan, sizes, block_rows, settings)
        return plan
    if not storage.is_empty():
        raise KPError(
            f"{storage.url} is not empty, and holds no archive that was begun; name a new folder"
        )
    plan = Plan(sizes, block_rows, settings, datetime.now(UTC), split(files))
    storage.write(PLAN_FILE, plan.to_json())
    return plan


def _check_same(
    storage: Storage,
    plan: Plan,
    files: list[tuple[str, int]],
    block_rows: int,
    settings: Mapping[str, Any],
) -> None:
    pairs: list[tuple[str, object, object]] = [
        (f"settings: {name}", plan.settings.get(name), settings.get(name))
        for name in {**plan.settings, **settings}
    ]
    pairs.append(("rows of a block", plan.block_rows, block_rows))
    pairs.append(("number of files", len(plan.files), len(files)))
    pairs += [("files", before, now) for before, now in zip(plan.files, files, strict=False)]
    for name, before, now in pairs:
        if before != now:
            raise KPError(
                f"{storage.url} was begun with another plan: {name} "
                f"{one_line(json.dumps(before), _SHOWN_CHARS)}, now "
                f"{one_line(json.dumps(now), _SHOWN_CHARS)}; begin with the same, or name another "
                "destination"
            )
