"""What commands print: lines, JSON and tables, safe for a terminal whatever their text holds."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TextIO, TypeVar

from kp_langchain.errors import KPError
from kp_langchain.importing.json_lines import STDIO as STDIO
from kp_langchain.text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_T = TypeVar("_T")
_PIPED_WIDTH = 160
_DIGITS = 6
_SQLITE = b"SQLite format 3\0"
_LAST_BLANKS = re.compile(r" +(?=\n)")


# ------------------------------------------------------------------ lines and JSON


def visible(text: str) -> str:
    """Return `text` without the characters that control a terminal; line feeds stay."""
    return printable(text, keep="\n")


def say(text: str, *, file: TextIO | None = None) -> None:
    """Print `text` on standard output or on another file, safe for a terminal."""
    # The end of the line is not left to `print`, which writes it by itself: a log record of another
    # thread would come in between.
    print(f"{visible(text)}\n", end="", file=file or sys.stdout)


def warn(text: str) -> None:
    """Print `text` on standard error, safe for a terminal."""
    say(text, file=sys.stderr)


def say_json(
    value: Any,
    verbatim: Mapping[str, Any] = MappingProxyType({}),
    *,
    write: Callable[[str], object] | None = None,
) -> None:
    """Write a value as one line of JSON, safe for a terminal, its numbers with six decimals.

    Args:
        value: Plain values, or an instance of a dataclass, of which the public fields are written.
        verbatim: More fields, whose numbers stay as they are, such as what a run has recorded.
        write: Takes the line, such as that of `text_output`; by default it is printed.
    """
    values = _plain(value)
    if verbatim:
        values |= verbatim
    takes_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    line = printable_json(json.dumps(values, ensure_ascii=not takes_unicode)) + "\n"
    (write or sys.stdout.write)(line)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        value = {name: getattr(value, name) for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def percent(share: float) -> str:
    """Return a share as a percentage, a small one with more digits."""
    return f"{share:.0%}" if share >= 0.01 or not share else f"{100 * share:.2g}%"


# ------------------------------------------------------------------ tables


def make_console(**options: Any) -> Console:
    """Return a console as wide as the terminal; output to a pipe is not cut to 80 columns.

    It prints text as it is, without interpreting markup: text of a run may look like some.

    Args:
        options: Further arguments of rich's `Console`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Replace characters that would control the terminal; the only escapes are rich's own.

        Blanks at the end of a line, to which rich pads cells, are left out.
        """

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            blanks: list[Segment] = []
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                elif segment.text.startswith("\n"):
                    blanks = []
                    yield Segment(visible(segment.text), segment.style)
                else:
                    text = _LAST_BLANKS.sub("", visible(segment.text))
                    rest = text.rstrip(" ")
                    if rest:
                        yield from blanks
                        yield Segment(rest, segment.style)
                        blanks = []
                    blanks.append(Segment(text[len(rest) :], segment.style))
            yield from blanks

    plain = {"highlight": False, "markup": False, "emoji": False, **options}
    console: Console = SafeConsole(**plain)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = SafeConsole(width=_PIPED_WIDTH, **plain)
    return console


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]] = (), *, fills: bool = False
) -> Table:
    """Return a table, of which only the last column is cut or folded where there is no room.

    Args:
        headings: The headings of its columns; one that ends in `>` is aligned on the right.
        rows: The cells of each row.
        fills: Whether it is as wide as the terminal; its last column is cut then, and not folded.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.expand = table.show_edge = fills
    for heading in headings[:-1]:
        side: Any = "right" if heading.endswith(">") else "left"
        table.add_column(heading.removesuffix(">"), no_wrap=True, justify=side)
    if fills:
        table.add_column(headings[-1], ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    else:
        side = "right" if headings[-1].endswith(">") else "left"
        table.add_column(headings[-1].removesuffix(">"), overflow="fold", justify=side)
    for row in rows:
        table.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[_T]):
    """A column of a list of records.

    Attributes:
        title: Its heading; one that ends in `>` is aligned on the right.
        text: Returns what it shows of a record.
        style: Returns the style of that.
        from_width: A terminal with fewer columns leaves it out.
    """

    title: str
    text: Callable[[_T], str | Text]
    style: Callable[[_T], str] = lambda _: ""
    from_width: int = 0


def list_table(columns: Sequence[Column[_T]], records: Iterable[_T], *, width: int) -> Table:
    """Return records as a table of the terminal's width, one a row.

    Args:
        columns: What is shown of each.
        records: The records.
        width: The width of the terminal in characters.
    """
    from rich.text import Text

    fitting = [column for column in columns if column.from_width <= width]

    def cells(record: _T) -> Iterator[Text]:
        for column in fitting:
            cell = column.text(record)
            yield Text(visible(cell), column.style(record)) if isinstance(cell, str) else cell

    return make_table([one.title for one in fitting], map(list, map(cells, records)), fills=True)


def print_list(
    columns: Sequence[Column[_T]],
    records: Sequence[_T],
    *,
    as_json: bool,
    to_json: Callable[[_T], Any] = lambda record: record,
) -> None:
    """Print records as a table, or each as a line of JSON.

    Args:
        columns: The columns of the table.
        records: The records.
        as_json: Whether to print JSON.
        to_json: Returns what is written of a record, for `say_json`.
    """
    if as_json:
        for record in records:
            say_json(to_json(record))
    elif records:
        console = make_console()
        console.print(list_table(columns, records, width=console.width))


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return facts, each with its label before it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold", ratio=1)
    before = ""
    for label, text in facts:
        table.add_row("" if label == before else label, Text(visible(text)))
        before = label
    return table


def field_facts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record that are set, as label and text.

    Args:
        values: The fields by name. Each item of a list is a fact of its own.
    """
    for name, value in values.items():
        items = value if isinstance(value, list | tuple) else [value]
        for item in items:
            text = item
            if isinstance(item, Mapping):
                text = "; ".join(f"{key}: {one}" for key, one in item.items())
            elif isinstance(item, datetime):
                text = f"{item:%Y-%m-%d %H:%M:%S} UTC"
            if item is not None:
                yield name.replace("_", " "), str(text)


def indent(table: RenderableType) -> RenderableType:
    """Return a table indented under its headline."""
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, 2))


# ------------------------------------------------------------------ streams and files


@contextmanager
def text_output(file: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text.

    A file appears, or is replaced, as the block ends; if that raises, it is as it was. Only its
    owner may read it.

    Args:
        file: The file, or `-` for standard output.

    Raises:
        KPError: The file is a SQLite database, or cannot be written.
    """
    if file == STDIO:
        yield sys.stdout.write
        sys.stdout.flush()  # so that a closed pipe is noticed here
        return
    with binary_output(file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        try:
            yield text.write
            text.flush()
        finally:
            with suppress(OSError):  # of the rest, if something could not be written
                text.detach()


@contextmanager
def binary_output(file: str) -> Iterator[BinaryIO]:
    """Yield a stream of bytes; for the file and errors see `text_output`."""
    if file == STDIO:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(file).resolve()  # a link stays, and what it leads to is replaced
    if target.exists() and not target.is_file():
        raise KPError(f"{file} is not a file; give a file's path, or - for standard output")
    with file_errors(file, "written"):
        if target.exists() and os.access(target, os.R_OK) and _begins_as_database(target):
            raise KPError(f"{file} is a database, perhaps a store; choose another file")
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(descriptor)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextmanager
def folder_output(folder: str) -> Iterator[Path]:
    """Yield an empty folder that appears under its name as the block ends, unless that raises.

    Only its owner may read it.

    Args:
        folder: The folder; it must be new, or empty.

    Raises:
        KPError: It is neither, or cannot be written.
    """
    target = Path(folder).resolve()
    with file_errors(folder, "written"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise KPError(f"{folder} exists and is not empty; name a new folder, or remove it")
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
        try:
            yield temporary
            temporary.replace(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _begins_as_database(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(_SQLITE)) == _SQLITE


@contextmanager
def file_errors(name: str, action: str) -> Iterator[None]:
    """Raise errors of the operating system as a `KPError` that names the file.

    A `BrokenPipeError` passes: `main` handles it.

    Args:
        name: The file's name in the message.
        action: What could not be done: `read`, `opened` or `written`.

    Raises:
        KPError: The block raised an `OSError`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KPError(f"{name} cannot be {action}: {error.strerror or error}") from error


def is_closed_pipe(error: BaseException | None) -> bool:
    """Return whether an exception arose because the reader closed its end of the output."""
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__  # typer and rich turn it into a SystemExit
    return error is not None


def replace_unencodable(*streams: TextIO | None) -> None:
    """Replace characters that a terminal's encoding lacks, instead of failing on them."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard(*streams: TextIO) -> None:
    """Discard buffered output, which the interpreter would try to write at exit."""
    for stream in streams:
        # A stream that is closed, or is not a file, is not written at exit.
        with suppress(AttributeError, OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
