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
_COST_OF_START = 48  # what a start in vain counts, in characters
_MAX_WASTE = 4  # strings that turn out not to end may cost this many times the length of the text

# Where reading starts: at a container whose first member is a string or a container, at the named
# arguments of an object's `repr`, at a string that holds JSON with its quotes escaped, at a list with
# a string after numbers and constants, and at a string that is the whole text.
_START = lazy_pattern(
    r"""[\[{("](?: (?<=[\[{])(?=\s{0,200}(?:[bu]?["']|[\[{(]))
      | (?<=\()(?=[a-z_]\w{0,60}=(?:[bu]?["']|[\[{(]))
      | (?<=")(?=[\[{](?:\s|\\n){0,40}\\")
      | (?<=\[)(?=\s{0,40}(?:[\d.eE+\-]{1,24}|null|true|false|None|True|False)\s{0,8},
            [^\[\]{}"']{0,200}["'{\[])
      | (?<=\A")(?=(?:[^"\\]|\\.)*+"\s*\Z) )""",
    re.VERBOSE,
)
_NAME_BEFORE = lazy_pattern(r"([\w.\-]{1,64})[\"'`]?\s{0,4}(?:=>|:=|=|:)\s{0,8}\Z")
_KEY_OF_PHP = lazy_pattern(r"\[\"[^\"\n]{1,80}\"\]=>")  # as var_dump prints it
_TYPE_NAME = lazy_pattern(r"(?<!\w)[A-Z]\w{0,80}\Z")
_TOKEN = lazy_pattern(
    r"""\s*(?:
      (?P<string>[bu]?["'])
    | (?P<colon>:)
    | (?P<comma>,)
    | (?P<close>[\]})])
    | (?P<open>(?:[A-Za-z_][\w.]{0,80})?[\[{(])
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]|[ ]\d))
    | (?P<argument>[A-Za-z_]\w{0,60}=(?!=))
    | (?P<constant>(?:true|false|null|None|True|False|NaN|-?Infinity|nan|inf)\b)
    | (?P<other>[\w.+\-]+ | <[^<>\n]{1,200}>)
    )""",
    re.VERBOSE,
)
_PYTHON_STRING = lazy_pattern(
    r"[bu]?(?:'(?P<one>(?:[^'\\\n]|\\.)*)'|\"(?P<two>(?:[^\"\\\n]|\\.)*)\")"
)
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
        style: How to write it: `"`, `'` or `b'`.
        is_string: Whether it is a string.
    """

    __slots__ = ("end", "is_string", "start", "style")

    start: int
    end: int
    style: str
    is_string: bool


class Document(NamedTuple):
    """JSON or a Python literal in a text, as far as it could be read.

    Attributes:
        start: Index of its first character in the text.
        end: Index after the last character that was read.
        name: The name before it, as in `settings = {...}`; empty if there is none.
        value: Its content: dicts, lists and tuples.
        literals: The strings and numbers in `value`, in order; None if their places are not known.
    """

    start: int
    end: int
    name: str
    value: Any
    literals: list[Literal] | None = None


class _Container:
    """A list, mapping or object that is being read."""

    def __init__(self, opening: str, literals: int) -> None:
        self.closing = _CLOSING[opening[-1]]
        # f(x) and x[0] are code, and what stands within is no value; Message(text='...') is one.
        self.is_code = len(opening) > 1 and (opening[-1] != "(" or not opening[0].isupper())
        self.literals_before = literals
        self.members: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.names: list[Any] = []  # of the pair that is being read: one or none
        self.is_after_member = False

    def add(self, value: Any) -> None:
        if self.names:
            self.pairs.append((self.names.pop(), value))
        else:
            self.members.append(value)
        self.is_after_member = True

    def pop(self) -> Any:
        """Remove and return the last member or value."""
        self.is_after_member = False
        if not self.pairs:
            return self.members.pop()
        name, value = self.pairs.pop()
        self.names.append(name)
        return value

    def take_name(self) -> bool:
        """Turn the last member into the name of a pair; False if there is none."""
        if self.closing != "}" or not self.is_after_member or not self.members:
            return False
        self.names.append(self.members.pop())
        self.is_after_member = False
        return True

    def value(self) -> Any:
        if not self.pairs:
            return tuple(self.members) if self.closing == ")" else self.members
        named = _mapping(self.pairs)
        return [*self.members, named] if self.members else named


class _UnreadableError(Exception):
    """What follows is neither JSON nor a Python literal."""


class _Reader:
    """Reads the documents in one text, from the start to the end."""

    def __init__(self, text: str, *, with_places: bool) -> None:
        self._text = text
        self._needs_places = with_places
        self._waste = _MAX_WASTE * len(text) + 1024
        self._at = 0
        self._style = '"'
        self._literals: list[Literal] = []
        self._containers: list[_Container] = []

    def documents(self) -> list[Document]:
        documents = []
        while self._waste >= 0 and (start := _START.search(self._text, self._at)) is not None:
            self._at = start.start()
            document = None
            if self._may_start():
                document = self._read_json() or self._read()
            if document is not None:
                documents.append(document)
            else:
                self._waste -= _COST_OF_START
            self._at = max(self._at, start.end())
        return documents

    def _read_json(self) -> Document | None:
        """Read JSON, without the places of its literals, which is fast."""
        start = self._at
        if self._needs_places or self._text[start] not in "[{":
            return None
        try:
            value, self._at = _JSON.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            self._waste -= self._chars_read(error, start)
            return None
        except (RecursionError, ValueError):
            self._needs_places = True
            return None
        return Document(start, self._at, self._name_before(start), value)

    def _may_start(self) -> bool:
        """Return whether the bracket here opens a value, rather than a subscript or a call."""
        opening = self._text[self._at]
        before = self._text[max(0, self._at - 82) : self._at]
        if opening == "[" and _KEY_OF_PHP.match(self._text, self._at):
            return False
        if opening == "(":
            return _TYPE_NAME.search(before) is not None
        return opening != "[" or not (before[-1:].isalnum() or before[-1:] in ("_", ")", "]"))

    def _read(self) -> Document | None:
        """Read the document that starts here, or as much of it as can be read."""
        start = self._at
        self._literals, self._containers = [], []
        root = _Container("[", 0)
        self._containers.append(root)
        is_whole = True
        try:
            while not (len(self._containers) == 1 and root.members):
                self._read_token()
        except _UnreadableError:
            is_whole = False
        has_pairs = any(container.pairs for container in self._containers)
        while len(self._containers) > 1:
            self._close()
        if not self._literals or not (is_whole or has_pairs):
            return None
        return Document(start, self._at, self._name_before(start), root.members[0], self._literals)

    def _name_before(self, start: int) -> str:
        match = _NAME_BEFORE.search(self._text[max(0, start - 80) : start])
        return match[1] if match else ""

    def _read_token(self) -> None:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise _UnreadableError
        container = self._containers[-1]
        kind = token.lastgroup
        if kind == "comma" and container.is_after_member:
            container.is_after_member = False
        elif kind == "colon" and container.take_name():
            pass
        elif kind == "close" and token["close"] == container.closing and len(self._containers) > 1:
            self._close()
        elif kind == "string" and self._may_be_string_here():
            self._read_string(token.start("string"), token.end())
            return
        elif container.is_after_member or kind in ("comma", "colon", "close"):
            raise _UnreadableError
        elif kind == "open":
            if len(self._containers) > MAX_DEPTH:
                raise _UnreadableError
            self._containers.append(_Container(token["open"], len(self._literals)))
        elif kind == "number":
            number = token["number"]
            self._add_literal(number, token.start("number"), token.end(), self._style, False)
        elif kind == "argument":
            if container.names:
                raise _UnreadableError
            container.names.append(token["argument"][:-1])
        elif kind == "constant":
            container.add(token["constant"] in ("true", "True") or None)
        else:
            self._leave_out(token["other"])
        self._at = token.end()

    def _may_be_string_here(self) -> bool:
        """Return whether a value may follow, or the rest of a string: 'one ' 'two'."""
        container = self._containers[-1]
        if not container.is_after_member:
            return True
        last = self._literals[-1] if self._literals else None  # two strings in a row are one
        is_joined = last is not None and last.is_string and last.end == self._at
        return is_joined and container is not self._containers[0]

    def _leave_out(self, word: str) -> None:
        """Leave an unquoted word to those who search plain text, together with its name."""
        container = self._containers[-1]
        if container.names:
            self._forget(container.names.pop())
            container.is_after_member = True
        else:
            container.add(word)

    def _forget(self, name: Any) -> None:
        if self._literals and self._literals[-1] is name:
            self._literals.pop()

    def _read_string(self, start: int, inside: int) -> None:
        style = self._text[start:inside].replace("u", "")
        if style == '"':
            try:
                content, end = _JSON.raw_decode(self._text, inside - 1)
            except json.JSONDecodeError as error:
                self._spend(self._chars_read(error, start))
                content, end = self._python_string(start)
        else:
            content, end = self._python_string(start)
        container = self._containers[-1]
        if container.is_after_member:
            first = self._literals.pop()
            container.pop()
            content, start, style = first + content, first.start, first.style
        self._style = style
        self._add_literal(content, start, end, style)
        self._at = end

    def _python_string(self, start: int) -> tuple[str, int]:
        match = _PYTHON_STRING.match(self._text, start)
        if match is None:
            line_end = self._text.find("\n", start)
            self._spend((line_end if line_end >= 0 else len(self._text)) - start)
            raise _UnreadableError
        content = match["one"] or match["two"] or ""
        return _ESCAPE.sub(_unescape, content) if "\\" in content else content, match.end()

    def _chars_read(self, error: json.JSONDecodeError, start: int) -> int:
        """Return how many characters were read from `start` on before the error was seen."""
        return (len(self._text) if "Unterminated" in error.msg else error.pos) - start

    def _spend(self, chars: int) -> None:
        """Count characters that will be read again."""
        self._waste -= chars
        if self._waste < 0:
            raise _UnreadableError

    def _add_literal(
        self, content: str, start: int, end: int, style: str, is_string: bool = True
    ) -> None:
        literal = Literal(content)
        literal.start, literal.end, literal.style = start, end, style
        literal.is_string = is_string
        self._literals.append(literal)
        self._containers[-1].add(literal)

    def _close(self) -> None:
        container = self._containers.pop()
        if container.names:  # without a value
            self._forget(container.names.pop())
        if container.is_code:
            del self._literals[container.literals_before :]
            self._leave_out("")
        else:
            self._containers[-1].add(container.value())


def read_documents(text: str, *, with_places: bool = False) -> list[Document]:
    """Return the JSON and the Python literals in a text, in order.

    Args:
        text: Any text; takes time linear in its length.
        with_places: Whether the places of all strings and numbers are needed.
    """
    if _START.search(text) is None:
        return []
    return _Reader(text, with_places=with_places).documents()


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
        _written(piece, text, changes[piece.start])
        if isinstance(piece, Literal) and piece.start in changes
        else text[piece.start : piece.end]
        for piece in pieces
    ]
    ends = [0, *(piece.end for piece in pieces)]
    starts = [*(piece.start for piece in pieces), len(text)]
    between = (text[end:start] for end, start in zip(ends, starts, strict=True))
    return MaskedText(mask.join(between), mask, contents)


def _written(literal: Literal, text: str, content: str) -> str:
    """Return `content` in the style of a literal of `text`."""
    is_ascii = text[literal.start : literal.end].isascii()
    if literal.style == '"':
        has_surrogates = any("\ud800" <= character <= "\udfff" for character in content)
        return json.dumps(content, ensure_ascii=is_ascii or has_surrogates)
    # With both quotes in front, Python writes the single quote and escapes it.
    escaped = (ascii if is_ascii else repr)("\"'" + content)[4:-1]
    return f"{literal.style[:-1]}'{escaped}'"


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code:
        return chr(int(code, 16))
    return _ESCAPED.get(escape[4], escape[4] if escape[4] in "\\'\"" else escape.group())
