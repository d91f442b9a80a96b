"""The plan of an archive: blocks of consecutive rows, and what of earlier blocks each needs.

The plan is written first, so that the same command continues what was interrupted, and a command
that would give other results is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple, Self

from kp_langchain.archive.files import Storage, Version, version_of
from kp_langchain.archive.splitting import ROW_BYTES, Block, FilePart, FileParts, Part
from kp_langchain.errors import KPError
from kp_langchain.text import one_line

PLAN_FILE = "_work/plan.json"
BLOCK_ROWS = 500
"""Rows of a block: with the default model, what a core embeds in about a minute."""

_VERSION = 1
_MANY_BLOCKS = 50_000
_SHOWN_CHARS = 300


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
        files: The name of each file, its size in bytes and what tells its versions apart, in order.
        block_rows: How many lines or rows a block has at most; a file of spans is one block.
        settings: The settings that the result depends on, by name.
        read_at: The time of runs that state none.
        parts: How each file is divided; None until that is known.
        summary: What became of all rows, once all is done.
    """

    files: list[Version]
    block_rows: int
    settings: Mapping[str, Any]
    read_at: datetime
    parts: list[FileParts] | None = None
    summary: Mapping[str, Any] | None = None

    def blocks(self, files: Sequence[str]) -> list[Block]:
        """Return the blocks of the files, in order; small files share one."""
        groups: list[list[FilePart]] = []
        rows = self.block_rows
        for one in self.parts or ():
            for part in one.parts:
                if rows + part.rows > self.block_rows:
                    groups.append([])
                    rows = 0
                groups[-1].append(FilePart(files[one.number], one.number, one.way, part))
                rows += part.rows
        return [Block(number, tuple(group)) for number, group in enumerate(groups)]

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
        fields["files"] = [Version(*one) for one in fields["files"]]
        if fields["parts"] is not None:
            fields["parts"] = [
                FileParts(number, way, [Part(*part) for part in parts])
                for number, way, parts in fields["parts"]
            ]
        return cls(**fields | {"read_at": datetime.fromisoformat(fields["read_at"])})


def plan_in(storage: Storage) -> Plan | None:
    """Return the plan of an archive; None if none was begun.

    Raises:
        KPError: It cannot be read.
    """
    content = storage.read(PLAN_FILE)
    if content is None:
        return None
    try:
        return Plan.from_json(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise KPError(
            f"{storage.url}/{PLAN_FILE} cannot be read ({error}); remove {storage.url}, or name "
            "another destination"
        ) from error


def plan_of(
    storage: Storage,
    files: Sequence[str],
    *,
    block_rows: int | None,
    settings: Mapping[str, Any],
    split: Callable[[int], list[FileParts]],
) -> Plan:
    """Return the plan that is there already, or make and write one.

    Args:
        storage: Where the results go.
        files: The files, in order.
        block_rows: How many rows a block has at most; None for `BLOCK_ROWS`, and more in archives
            of which that would be many blocks.
        settings: The settings that the result depends on, by name.
        split: Divides the files into blocks of so many rows.

    Raises:
        KPError: A file cannot be read, or another plan is there; the message says what differs.
    """
    versions = [version_of(file) for file in files]
    if block_rows is None:
        rows = sum(one.size for one in versions) // ROW_BYTES
        block_rows = max(BLOCK_ROWS, rows // _MANY_BLOCKS)
    new = Plan(versions, block_rows, json.loads(json.dumps(settings)), datetime.now(UTC))
    plan = plan_in(storage)
    if plan is None:
        if not storage.is_empty():
            raise KPError(
                f"{storage.url} is not empty, and holds no archive that was begun; name a new "
                "folder"
            )
        # Before the files are read: another command that begins meanwhile finds it.
        storage.create(PLAN_FILE, new.to_json())
        plan = plan_in(storage) or new
    _check_same(storage, plan, new)
    if plan.parts is None:
        plan = replace(plan, parts=split(plan.block_rows))
        storage.write(PLAN_FILE, plan.to_json())
    return plan


def _check_same(storage: Storage, plan: Plan, new: Plan) -> None:
    pairs: list[tuple[str, object, object]] = [
        (f"settings: {name}", plan.settings.get(name), new.settings.get(name))
        for name in {**plan.settings, **new.settings}
    ]
    pairs.append(("rows of a block", plan.block_rows, new.block_rows))
    pairs.append(("number of files", len(plan.files), len(new.files)))
    pairs += [("files", one, other) for one, other in zip(plan.files, new.files, strict=False)]
    for name, before, now in pairs:
        if before != now:
            raise KPError(
                f"{storage.url} was begun with another plan: {name} "
                f"{one_line(json.dumps(before), _SHOWN_CHARS)}, now "
                f"{one_line(json.dumps(now), _SHOWN_CHARS)}; begin with the same, or name another "
                "destination"
            )
