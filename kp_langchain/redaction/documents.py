"""JSON and Python literals in a text: read their strings, and write changed strings back.

A tool's answer is mostly JSON, or the `repr` of a Python object, alone or within prose and logs. Its
strings are read once, with their keys, so that each is searched as the plain text that it is. What
was valid stays valid: between the quotes of a changed string, only its content is written anew.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from kp_langchain.redaction.spans import lazy_pattern

MAX_DEPTH = 150  # of containers; what is nested deeper is read as plain text
_COST_OF_START = 48  # characters that a failed start counts besides those that it read
_MAX_WASTE = 4  # failed starts may read this many times the length of the text

# Reading starts at
# - a container whose first member is a string or a container,
# - a list that has one of these after numbers and constants; not a subscript such as x["a"], and not
#   a key as PHP prints it,
# - a string that holds JSON with its quotes escaped,
# - a string that is the whole text.
_START = lazy_pattern(
    r"""[\[{"](?: (?<=\{)(?=\s{0,200}(?:[bu]?["']|[\[{(]))
      | (?<=\[)(?<![\w)\]]\[)(?!"[^"\n]{1,80}"\]=>)(?=\s{0,200}(?:[bu]?["']|[\[{(])
            |\s{0,40}(?:[\d.eE+\-]{1,24}|null|true|false|None|True|False)\s{0,8},
             [^\[\]{}"']{0,200}["'{\[])
      | (?<=")(?=[\[{](?:\s|\\n){0,40}\\")
      | (?<=\A")(?=(?:[^"\\]|\\.)*+"\s*\Z) )""",
    re.VERBOSE,
)
_NAME_BEFORE = lazy_pattern(r"([\w.\-]{1,64})[\"'`]?\s{0,4}(?:=>|:=|=|:)\s{0,8}\Z")
_TOKEN = lazy_pattern(
    r"""\s*(?:
      (?P<json>"(?:[^"\\]|\\.)*+")
    | (?P<string>u?'(?:[^'\\\n]|\\.)*+' | u"(?:[^"\\\n]|\\.)*+")
    | (?P<bytes>b'(?:[^'\\\n]|\\.)*+' | b"(?:[^"\\\n]|\\.)*+")
    | (?P<open>(?:[A-Z]\w{0,80}\(|[\[{(]))
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]|[ ]\d))
    | (?P<constant>(?:true|false|null|None|True|False|NaN|-?Infinity|nan|inf)\b | <[^<>\n]{1,200}>
        | [A-Za-z_][\w.]{0,80}(?:\([^()\n]{0,200}\)|\[[^\[\]\n]{0,200}\]))       # code
    )""",
    re.VERBOSE | re.DOTALL,
)
_SIGN = lazy_pattern(r"\s*([:,\]})])")
_ARGUMENT = lazy_pattern(r"\s*([A-Za-z_]\w{0,60})=(?!=)")
_ESCAPE = lazy_pattern(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5})|(.))", re.DOTALL
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_MASKS = [chr(code) for code in range(0x10FFFD, 0x10F000, -1)]  # characters without a meaning
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def _mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | list[tuple[Any, Any]]:
    """Return pairs as a mapping, or as they are if two have the same name or one is a container."""
    try:
        mapping = dict(pairs)
    except TypeError:  # {[1]: 2}, which is no Python
        return pairs
    return mapping if len(mapping) == len(pairs) else pairs


_JSON = json.JSONDecoder(object_pairs_hook=_mapping, strict=False)


class Literal(str):
    """A string or number in a text.

    Attributes:
        start: Index of its first character in the text: the opening quote, if it has one.
        end: Index after its last character.
        style: How it is written: "json", "string" or "bytes" for a string of Python, "number".
    """

    __slots__ = ("end", "start", "style")

    start: int
    end: int
    style: str


class Document(NamedTuple):
    """JSON or a Python literal in a text.

    Attributes:
        start: Index of its first character in the text.
        end: Index after its last character.
        name: The name before it, as in `settings = {...}`; empty if there is none.
        value: Its content: dicts, lists and tuples.
        literals: The strings and numbers in `value`, in order; None if their places are not known.
    """

    start: int
    end: int
    name: str
    value: Any
    literals: list[Literal] | None = None


class _UnreadableError(Exception):
    """What follows is neither JSON nor a Python literal."""


class _Reader:
    """Reads a document with the places of its strings and numbers.

    Args:
        text: The text.
        at: Where the document starts.

    Attributes:
        at: Index after what was read.
        literals: The strings and numbers that were read.
    """

    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self.literals: list[Literal] = []
        self._text = text

    def read(self, depth: int = 0) -> Any:
        """Return the value that starts here.

        Args:
            depth: The number of containers around it.

        Raises:
            _UnreadableError: No value starts here, or it is nested too deeply.
        """
        token = _TOKEN.match(self._text, self.at)
        if token is None or token.lastgroup is None or depth > MAX_DEPTH:
            raise _UnreadableError
        self.at = token.end()
        kind = token.lastgroup
        if kind == "open":
            return self._container(_CLOSING[token["open"][-1]], depth + 1)
        if kind == "constant":
            return token["constant"] in ("true", "True") or None
        literal = Literal(_content(kind, token[kind]))
        literal.start, literal.end = token.span(kind)
        literal.style = kind
        self.literals.append(literal)
        return literal

    def _container(self, closing: str, depth: int) -> Any:
        """Return the list, mapping, or arguments of an object that end with `closing`."""
        members: list[Any] = []
        pairs: list[tuple[Any, Any]] = []
        while not self._skip(closing):
            argument = _ARGUMENT.match(self._text, self.at)
            if argument is not None:
                self.at = argument.end()
                pairs.append((argument[1], self.read(depth)))
            else:
                member = self.read(depth)
                if closing == "}" and self._skip(":"):
                    pairs.append((member, self.read(depth)))
                else:
                    members.append(member)
            if not self._skip(","):
                if not self._skip(closing):
                    raise _UnreadableError
                break
        if pairs:
            named = _mapping(pairs)
            return [*members, named] if members else named
        return tuple(members) if closing == ")" else members

    def _skip(self, sign: str) -> bool:
        """Go past a sign, and return True, if it is the next one."""
        match = _SIGN.match(self._text, self.at)
        if match is None or match[1] != sign:
            return False
        self.at = match.end()
        return True


def read_documents(text: str, *, with_places: bool = False) -> list[Document]:
    """Return the JSON and the Python literals in a text, in order.

    Args:
        text: Any text; takes time linear in its length.
        with_places: Whether the places of all strings and numbers are needed.
    """
    documents = []
    position, waste = 0, _MAX_WASTE * len(text) + 1024
    while waste >= 0 and (match := _START.search(text, position)) is not None:
        start, position = match.span()
        before = _NAME_BEFORE.search(text[max(0, start - 80) : start])
        name = before[1] if before else ""
        if not with_places:
            try:
                value, position = _JSON.raw_decode(text, start)
            except json.JSONDecodeError as error:
                waste -= _chars_read(text, start, error.pos)
            except (RecursionError, ValueError):
                waste -= len(text)
            else:
                documents.append(Document(start, position, name, value))
                continue
        reader = _Reader(text, start)
        try:
            value = reader.read()
        except (_UnreadableError, RecursionError):
            waste -= _COST_OF_START + _chars_read(text, start, reader.at)
            continue
        if reader.literals:
            documents.append(Document(start, reader.at, name, value, reader.literals))
            position = reader.at
    return documents


def _chars_read(text: str, start: int, at: int) -> int:
    """Return how many characters were read from `start` on before an error at `at` was seen."""
    may_be_open = text[at : at + 2].strip("bu \n")[:1] in ("'", '"')  # a string without an end
    return (len(text) if may_be_open else at) - start


def _content(kind: str, source: str) -> str:
    """Return the content of a string or number as it is written."""
    if kind == "number":
        return source
    if kind == "json":
        try:
            return _JSON.decode(source)  # type: ignore[no-any-return]
        except json.JSONDecodeError:  # a string of Python in double quotes
            pass
    content = source.lstrip("bu")[1:-1]
    return _ESCAPE.sub(_unescape, content) if "\\" in content else content


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code:
        return chr(int(code, 16))
    return _ESCAPED.get(escape[4], escape[4] if escape[4] in "\\'\"" else escape.group())


class MaskedText(NamedTuple):
    """A text with a mask in the place of each part that must stay as it is.

    Attributes:
        text: The text with masks.
        mask: The character that stands for each part; the text contains no other one like it.
        contents: What the masks stand for, in order.
    """

    text: str
    mask: str
    contents: list[str]

    def restore(self, text: str) -> str:
        """Return `text`, which has the same masks, with their contents in their places."""
        parts = text.split(self.mask)
        return "".join(
            part for pair in zip(parts, [*self.contents, ""], strict=True) for part in pair
        )


def mask_documents(text: str, documents: list[Document], changes: dict[int, str]) -> MaskedText:
    """Return `text` with its documents masked.

    Args:
        text: Any text.
        documents: Its documents, from `read_documents`.
        changes: The new contents of literals, by their start. If there are any, the documents were
            read with places.
    """
    mask = next(character for character in _MASKS if character not in text)
    pieces: list[Document | Literal] = []
    for document in documents:
        pieces.extend([document] if document.literals is None else document.literals)
    contents = [
        _written(changes[piece.start], piece.style, text[piece.start : piece.end])
        if isinstance(piece, Literal) and piece.start in changes
        else text[piece.start : piece.end]
        for piece in pieces
    ]
    ends = [0, *(piece.end for piece in pieces)]
    starts = [*(piece.start for piece in pieces), len(text)]
    between = (text[end:start] for end, start in zip(ends, starts, strict=True))
    return MaskedText(mask.join(between), mask, contents)


def _written(content: str, style: str, source: str) -> str:
    """Return `content` in the style of a literal; in ASCII alone if `source`, what it replaces, is."""
    has_surrogates = any("\ud800" <= character <= "\udfff" for character in content)
    if style in ("json", "number"):
        return json.dumps(content, ensure_ascii=source.isascii() or has_surrogates)
    # With both quotes in front, Python writes the single quote and escapes it.
    escaped = (ascii if source.isascii() else repr)("\"'" + content)[4:-1]
    return f"{'b' if style == 'bytes' else ''}'{escaped}'"
