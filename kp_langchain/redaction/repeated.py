"""Secrets that occur again: an agent types the password that its user told it.

One place names the secret; the others do not, so no finder would see it there. How far a secret is
looked for depends on how sure it is the same one: a random key goes from everywhere, a word that is
also an ordinary one only from where something beside it says what it is.
"""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from kp_langchain.redaction.fields import (
    CODE_KINDS,
    HASH_LIKE,
    SensitiveField,
    classify_secret,
    is_random,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
    split_name,
)
from kp_langchain.redaction.formats import BLOB
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.questions import TABLE
from kp_langchain.redaction.spans import lazy_pattern, placeholder, starts_word
from kp_langchain.redaction.structures import KEYS, plain_key

_CVV = 3
_LONG_NUMBER = 6  # such a number hardly occurs twice by chance, unless it is 100000 or the like
_MIXED_DIGITS = 4
_LONG = 12
_LONG_KEY = 20
_SHORTEST_WORD = 6
_SHORTEST_MIXED = 8
_MAX_CHARS = 4096
_MOST = 200  # secrets of one run
_MOST_CHARS = 20_000  # of all of them
_OTHER_KINDS = frozenset((BLOB, "session", "cookie"))
_PASSWORD = SensitiveField("password")
_NUMBER = lazy_pattern(r"\d{3,12}|\d{2,4}(?:[ \-]\d{2,4}){1,3}")
_NUMBER_OR_SIGNS = lazy_pattern(r"[\d.eE+\-]*")  # JSON has numbers without quotes
_ADDRESS = lazy_pattern(
    r"www\.|[a-z]{2,12}://|[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)"
)
_IDENTIFIER = lazy_pattern(
    r"_*[a-z]+\d{0,3}(?:_[a-z]+\d{0,3})+|_*[A-Z]+\d?(?:_[A-Z]+\d?)+"
    r"|[A-Z]?[a-z]+(?:[A-Z][a-z]+)+(?:V?\d)?"
)
_PATH = lazy_pattern(r"[\w.~@:\-]*(?:/[\w.~@:\-]*)+")
_PHRASE = lazy_pattern(r"(?=.*[^\W\d_])[^\W_]{2,}(?:[\s,]+[^\W_]{2,}){2,32}")
_HYPHENATED = lazy_pattern(r"[^\W_]{2,}(?:[\-_.][^\W_]{2,}){2,}")
_WORDS_AND_NUMBERS = lazy_pattern(
    r"(?:[A-Z]?[a-z]{1,15}|\d{1,8})(?:[\-_.](?:[A-Z]?[a-z]{1,15}|\d{1,8})){2,}"
)
_SCHEME = lazy_pattern(r"(?:Bearer|Basic|Token|Bot|ApiKey|Key)\s+(?=\S+\Z)", re.IGNORECASE)


class Reach(IntEnum):
    """How far a secret is looked for."""

    BESIDE = 1
    """Only where something beside it says that it is one."""
    WORD = 2
    """Where it is a whole word, and not part of a compound such as `postgres15:latest`."""
    ANYWHERE = 3


class Named(NamedTuple):
    """What is known of a secret: its kind, and how far it is looked for."""

    kind: str
    reach: Reach


class Secrets:
    """The secrets that a value, or the parts of one run, have named.

    Of more than there is room for, the first are kept; the others go only from where they are named.

    Attributes:
        is_full: Whether there was no room for one.
        has_numbers: Whether one of them is a number.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.has_numbers = False
        self._chars = 0
        self._named: dict[str, Named] = {}
        self._answers: dict[tuple[str, bool], str] = {}
        self._search: SecretSearch | None = None

    def __bool__(self) -> bool:
        return bool(self._named)

    def note(self, kind: str, match: str, *, is_answer: bool = False) -> None:
        """Add a match of a finder, if it can be recognised elsewhere.

        Args:
            kind: Its kind; identifiers are found everywhere by themselves.
            match: The text.
            is_answer: Whether a human gave it when asked for it.
        """
        if kind in KINDS or kind in _OTHER_KINDS or not match:
            return
        secret = match if _PHRASE.fullmatch(match) else _SCHEME.sub("", match)
        for form in dict.fromkeys((secret, unquote(secret))):
            reach = _reach_of(form, kind, is_answer=is_answer)
            if reach is not None:
                self._add(form, Named(kind, reach))

    def note_answer(
        self, answer: str, secrets: Iterable[tuple[str, str]], *, is_step: bool = False
    ) -> None:
        """Add the secrets that an answer gives, and have the answer itself be cleaned of them.

        Args:
            answer: The whole answer.
            secrets: Kind and text of each secret.
            is_step: Whether the answer is a step of the run, and not its task.
        """
        clean = self.take_answer(answer.strip(), secrets, lambda kind, _: placeholder(kind))
        if clean != answer.strip() and len(self._answers) < _MOST:
            self._answers[answer.strip(), is_step] = clean

    def take_answer(
        self, answer: str, secrets: Iterable[tuple[str, str]], write: Callable[[str, str], str]
    ) -> str:
        """Add the secrets that an answer gives, and return it with what `write` makes of each.

        Args:
            answer: The whole answer.
            secrets: Kind and text of each secret.
            write: Returns the replacement of a secret, by its kind and text.
        """
        for kind, secret in sorted(secrets, key=lambda one: len(one[1]), reverse=True):
            self.note(kind, secret, is_answer=True)
            whole = rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])"  # not a part of another word
            first, *others = re.split(whole, answer)
            if others:
                answer = write(kind, secret).join((first, *others))
        return answer

    def clean_answer(self, text: str, *, is_step: bool = False) -> str:
        """Return an answer that gives secrets without them; any other text as it is."""
        return self._answers.get((text.strip(), is_step), text) if self._answers else text

    @property
    def named(self) -> dict[str, Named]:
        """The secrets, with what is known of each."""
        return dict(self._named)

    def add_all(self, named: Mapping[str, Named]) -> None:
        """Add the secrets that other values have named."""
        for secret, one in named.items():
            self._add(secret, one)

    def _add(self, secret: str, named: Named) -> None:
        known = self._named.get(secret)
        if known is not None and known.reach >= named.reach:
            return
        if known is None:
            if len(self._named) >= _MOST or self._chars + len(secret) > _MOST_CHARS:
                self.is_full = True
                return
            self._chars += len(secret)
        self._named[secret] = named
        self._search = None
        self.has_numbers = self.has_numbers or _NUMBER.fullmatch(secret) is not None

    @property
    def search(self) -> SecretSearch | None:
        """The search for all of them; another one after any was added, None if there are none."""
        if self._search is None and self._named:
            self._search = SecretSearch(self._named)
        return self._search


def _reach_of(secret: str, kind: str, *, is_answer: bool) -> Reach | None:
    """Return how far a secret is looked for; None if it cannot be recognised elsewhere."""
    size = len(secret)
    if _NUMBER.fullmatch(secret):
        if is_answer and len(set(secret)) >= _MIXED_DIGITS and size >= _LONG_NUMBER:
            return Reach.WORD
        is_secret = is_answer or (size > _CVV and (kind in CODE_KINDS or kind == "password"))
        return Reach.BESIDE if is_secret else None
    if size > _MAX_CHARS or _NUMBER_OR_SIGNS.fullmatch(secret) or _ADDRESS.match(secret):
        return None
    if _IDENTIFIER.fullmatch(secret) and not is_answer:
        return Reach.BESIDE  # or else one false match would take a name from all of the code
    if any(map(str.isspace, secret)):
        joined = "".join(secret.split())
        is_secret = _PHRASE.fullmatch(secret) is not None or looks_like_bare_password(joined)
        return Reach.WORD if is_secret and size >= _LONG else None
    if _PATH.fullmatch(secret) and not (is_random(secret) or _changes_often(secret)):
        return Reach.WORD if is_answer and size >= _SHORTEST_MIXED else None
    if _WORDS_AND_NUMBERS.fullmatch(secret) and size >= _SHORTEST_MIXED:
        return Reach.WORD
    is_hash = size >= _LONG_KEY and HASH_LIKE.fullmatch(secret) is not None
    is_generated = size >= _LONG_KEY and (is_random(secret) or _changes_often(secret))
    if is_hash or is_generated or is_unmistakable(secret, _PASSWORD):
        return Reach.ANYWHERE
    if size >= _LONG and (looks_like_bare_password(secret) or looks_generated(secret)):
        return Reach.ANYWHERE
    shortest = _SHORTEST_WORD if is_answer else _SHORTEST_MIXED
    if size >= shortest and looks_like_bare_password(secret):
        return Reach.WORD
    if size >= _SHORTEST_MIXED and (looks_like_password(secret) or _HYPHENATED.fullmatch(secret)):
        return Reach.WORD
    has_digit = any(map(str.isdigit, secret))
    return Reach.BESIDE if size >= (3 if is_answer else _SHORTEST_WORD - has_digit) else None


def _changes_often(secret: str) -> bool:
    """Return whether a long text changes case or kind as often as no path does."""
    has_digit = any(map(str.isdigit, secret))
    return has_digit and len(secret) >= _LONG_KEY and 4 * len(split_name(secret)) > len(secret)


# ------------------------------------------------------------------ the forms of a secret

_NOT_FOR_SHELLS = lazy_pattern(r"([^\w@%+=:,./\-])")
_QUOTES_IN_SHELL_STRINGS = (r"'\''", "'\"'\"'")
# What URLs keep as it is: all or nothing, a path, JavaScript's encodeURIComponent and encodeURI.
_SAFE_IN_URLS = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")
_HEX_IN_URLS = lazy_pattern("%[0-9A-F]{2}")
_WRITE_JSON = (encode_basestring, encode_basestring_ascii)
_SHORTEST_ENCODED = 6  # characters; the form of fewer may be part of any word
_SHORTEST_CODE = 8
_BYTES_OF_GROUP = 3
_DIGITS_OF_CODE = 6  # often written in two groups
_JOINTS = (" ", ", ", ",", "\n", "-", "_", "+", '", "')


def _written_forms(secret: str) -> set[str]:
    """Return how a secret is written: in JSON, also within JSON, in Python, a URL, HTML, a shell."""
    cases = {secret, secret.lower(), secret.upper(), secret.capitalize()}
    if secret.isascii() and secret.isalnum():
        return cases
    content = secret.encode("utf-8", "surrogatepass")
    in_urls = {quote(content, safe=safe) for safe in _SAFE_IN_URLS} | {quote_plus(content)}
    in_urls |= {_HEX_IN_URLS.sub(lambda match: match[0].lower(), form) for form in in_urls}
    forms = {secret, repr(secret)[1:-1], html.escape(secret), html.escape(secret, quote=False)}
    forms.add(_NOT_FOR_SHELLS.sub(r"\\\1", secret))
    forms |= {secret.replace("'", quote) for quote in _QUOTES_IN_SHELL_STRINGS}
    for _ in range(2):
        forms |= {write(form)[1:-1] for form in forms for write in _WRITE_JSON}
    return forms | in_urls | cases


def _encoded_forms(secret: str) -> Iterator[str]:
    """Yield what base64 of any text that contains a secret contains, and the same for digits.

    Base64 writes three bytes as four characters, so the text before the secret decides at which of
    three places it begins in a group. Of each, the characters that the secret alone decides.
    """
    content = secret.encode("utf-8", "surrogatepass")
    codes = [content.hex(), content.hex().upper()]
    for before in range(_BYTES_OF_GROUP):
        code = b64encode(b"\0" * before + content).decode()
        code = code[-(-before * 8 // 6) : (before + len(content)) * 8 // 6]
        codes += [code, code.translate({ord("+"): "-", ord("/"): "_"})]
    yield from (code for code in codes if len(code) >= _SHORTEST_CODE)


def _spellings(secret: str) -> set[str]:
    """Return a secret, a code also in two groups, and a phrase with its words joined in any way."""
    if len(secret) == _DIGITS_OF_CODE and secret.isdigit():
        return {secret, *(f"{secret[:3]}{joint}{secret[3:]}" for joint in " -")}
    if any(map(str.isspace, secret)):
        words = re.split(r"[\s,]+", secret)
        return {secret, *(joint.join(words) for joint in _JOINTS)}
    return {secret}


# ------------------------------------------------------------------ the search for them

_CUT = 12  # characters of its beginning by which a secret is recognised that was cut off
_MAX_BACKSLASHES = 32
_OF_BASE64 = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}={0,2}")
_OF_BASE64_REVERSED = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}")
_PLACEHOLDER_START = b"[REDAC"
_CUT_OFF = (b"...", "…".encode(), b"\\u2026", b"*", b"[")
_SYNTAX = frozenset(b" \t\r\n\"'\\{}[](),:")
_MOST_SYNTAX = 2  # within `_CUT`; many texts in JSON or Python begin alike
_JOINTS_OF_COMPOUNDS = b":./-_"


class _Form(NamedTuple):
    """A way to write a secret, in UTF-8.

    Attributes:
        content: Its characters.
        kind: The kind of the secret.
        reach: How far it is looked for.
        is_encoded: Whether it is base64 or the like, which goes as a whole.
        is_cut: Whether the search is for its beginning alone, from which on it may be cut off.
    """

    content: bytes
    kind: str
    reach: Reach
    is_encoded: bool = False
    is_cut: bool = False


class SecretSearch:
    """Looks for the forms of secrets.

    Args:
        named: The secrets.
    """

    def __init__(self, named: Mapping[str, Named]) -> None:
        self._named = named
        forms: dict[bytes, _Form] = {}
        for secret, (kind, reach) in named.items():
            if len(secret) >= _SHORTEST_ENCODED:
                for code in _encoded_forms(secret):
                    start = code[:_CUT].encode()
                    forms.setdefault(start, _Form(start, kind, Reach.ANYWHERE, is_encoded=True))
            for text in _spellings(secret):
                for written in _written_forms(text):
                    content = written.encode("utf-8", "surrogatepass")
                    forms[content] = _Form(content, kind, reach)
        for form in list(forms.values()):
            start = form.content[:_CUT]
            has_beginning = len(form.content) > _CUT and form.reach is not Reach.BESIDE
            if has_beginning and sum(map(_SYNTAX.__contains__, start)) <= _MOST_SYNTAX:
                forms.setdefault(start, form._replace(is_cut=True))
        self._forms = list(forms.values())
        self._places = BytesAhoCorasick(list(forms), matchkind=MatchKind.LeftmostLongest)

    def kind_of_value(self, value: object) -> str | None:
        """Return the kind of the secret that a typed value is as a whole; None if it is none."""
        named = self._named.get(str(value).strip(" \t\r\n\"'`.,;!"))
        return named.kind if named else None

    def clean(self, text: str, counts: Counter[str]) -> str:
        """Return a text without the secrets.

        Args:
            text: Any text.
            counts: The number of replacements per kind; updated.
        """
        content = text.encode("utf-8", "surrogatepass")
        matches = self._places.find_matches_as_indexes(content)
        if not matches:
            return text
        characters = content.decode("latin-1")  # one for each byte
        pieces, position = [], 0
        for number, start, _ in matches:
            form = self._forms[number]
            extent = _extent(form, content, characters, start, position)
            if extent is not None:
                first, end = extent
                counts[form.kind] += 1
                quote = b'"' if _is_json_number(content, first, end) else b""
                pieces += [content[position:first], quote, placeholder(form.kind).encode(), quote]
                position = end
        return b"".join([*pieces, content[position:]]).decode("utf-8", "surrogatepass")


def _extent(
    form: _Form, content: bytes, characters: str, start: int, position: int
) -> tuple[int, int] | None:
    """Return start and end of the secret whose form is at `start`, if it is one there.

    Args:
        form: The form.
        content: The text in UTF-8.
        characters: A character for each byte of it.
        start: The place.
        position: The end of the last secret before it.
    """
    before = content[max(0, start - _MAX_BACKSLASHES) : start]
    if start < position or (len(before) - len(before.rstrip(b"\\"))) % 2:
        return None  # within another one, or the "n" of a line break
    if form.is_encoded:
        left = _OF_BASE64_REVERSED.match(content[max(position, start - _MAX_CHARS) : start][::-1])
        right = _OF_BASE64.match(content, start)
        return start - (left.end() if left else 0), right.end() if right else start
    if not form.is_cut:
        end = start + len(form.content)
        return (start, end) if _is_there(form.reach, content, characters, start, end) else None
    size = _CUT
    end = min(len(form.content), len(content) - start)
    while size < end and content[start + size] == form.content[size]:
        size += 1
    while size < len(form.content) and form.content[size] & 0xC0 == 0x80:
        size -= 1  # within a character
    follows = content[start + size : start + size + 6]
    is_cut = follows.startswith(_CUT_OFF) or (
        form.reach is Reach.ANYWHERE and not follows[:1].isalnum()
    )
    is_replaced = follows == _PLACEHOLDER_START  # the rest was
    if is_cut and size >= _CUT and not is_replaced and starts_word(characters, start):
        return start, start + size
    return None


def _is_there(reach: Reach, content: bytes, characters: str, start: int, end: int) -> bool:
    """Return whether the secret of a form is at a place, and not part of something else."""
    if reach is Reach.ANYWHERE:
        return True
    after = content[end : end + 2]
    if not starts_word(characters, start) or after[:1].isalnum():
        return False
    if after[:1] in _JOINTS_OF_COMPOUNDS and after[1:].isalnum():
        return False
    before = content[max(0, start - 2) : start]
    if before[-1:] in (b"-", b"_", b".") and before[:1].isalnum() and len(before) == 2:
        return False
    return reach is Reach.WORD or _is_marked(content, start, end)


# ------------------------------------------------------------------ what stands beside a word

_BEFORE = 64  # bytes
_AFTER = 48
_TYPED_KEYS = KEYS.value_keys | KEYS.text_keys | TABLE["typed_keys"]
_KEY_BEFORE = lazy_pattern(
    r"([\w\-]{1,40})\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}(?:\\{0,3}[\"'] {0,4})?\Z"
)
_VALUE_END = lazy_pattern(r"[ .,;!]{0,4}\\{0,3}[\"']|\s{0,40}[,\]}]")
_CLAUSE_END = lazy_pattern(r"[.,;!?]\s|\n")
_WORD = lazy_pattern(r"[^\W_]+(?:[_\-'][^\W_]+)*")
_JSON_NUMBER = lazy_pattern(r"[:,\[]\s{0,40}\Z")
_JSON_NUMBER_END = lazy_pattern(r"\s{0,40}[,\]}]")
_TYPED_WORD = lazy_pattern(r"\A\s{0,9}([^\W_]{4,32}(?:[\-.][^\W_]{2,32}){0,8})\s{0,9}\Z")
_MOST_TYPED = 50
_MOST_PLACES = 50
_MOST_WORDS = 3  # of a name, and between a verb and what was typed


@lru_cache(maxsize=1024)
def is_typed(key: str) -> bool:
    """Return whether the key of a mapping says that its value is typed or answered."""
    return plain_key(key) in _TYPED_KEYS


def _is_json_number(content: bytes, start: int, end: int) -> bool:
    """Return whether `content[start:end]` is a number that is a value or an item of JSON."""
    before = content[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
    is_number = content[start:end].isdigit() and _JSON_NUMBER.search(before)
    after = content[end : end + _AFTER].decode("utf-8", "ignore")
    return bool(is_number and _JSON_NUMBER_END.match(after))


def _is_marked(content: bytes, start: int, end: int) -> bool:
    """Return whether something beside the word `content[start:end]` says that it is a secret.

    That is the name of a secret, a verb of typing, or the key of a text that is typed.
    """
    before = content[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
    after = content[end : end + _AFTER].decode("utf-8", "ignore")
    key = _KEY_BEFORE.search(before)
    if key and _VALUE_END.match(after):
        return is_typed(key[1])
    words = _WORD.findall(_CLAUSE_END.split(before)[-1].lower())
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())
    is_object = not following or following[0] in TABLE["after_typed"]
    if is_object and not TABLE["typing"].isdisjoint(words[-_MOST_WORDS:]):
        return True
    if not following and words[-1:] and words[-1] in TABLE["used"]:
        return words[-2:-1] != [] and words[-2] in TABLE["users"]
    return _kind_beside(before, after) is not None


def _kind_beside(before: str, after: str) -> str | None:
    """Return the kind of secret that a name before or after a word says it is; None if none does."""
    words = _WORD.findall(_CLAUSE_END.split(before)[-1].lower())
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())[: 2 * _MOST_WORDS]
    while words and words[-1] in TABLE["lead_ins"]:
        words.pop()
    kind = _kind_of_last(words)
    if kind is None and following and following[0] in TABLE["naming"]:
        kinds = (_kind_of_last(following[:size]) for size in range(2, len(following) + 1))
        kind = next(filter(None, kinds), None)
    return kind


def _kind_of_last(words: list[str]) -> str | None:
    """Return the kind of secret whose name the last of some words are, such as "PIN" or "code"."""
    if words and words[-1] in TABLE["codes"]:
        return "otp" if TABLE["no_codes"].isdisjoint(words) else None
    fields = (classify_secret(" ".join(words[-size:])) for size in range(1, _MOST_WORDS + 1))
    return next((field.kind for field in fields if field is not None and field.is_strong), None)


def typed_secrets(parts: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each ordinary word that one part types and another calls a secret.

    "Log in as bob, password sunflower" alone might say anything about the password.

    Args:
        parts: The texts and the inputs of a run.
    """
    texts, typed = [], set[str]()
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            typed.update(_typed_words(part))
    for word in sorted(typed)[:_MOST_TYPED]:
        whole = re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])")
        for text in texts:
            for match in islice(whole.finditer(text), _MOST_PLACES):
                start, end = match.span()
                before = text[max(0, start - _BEFORE) : start]
                if kind := _kind_beside(before, text[end : end + _AFTER]):
                    yield kind, word
                    break


def _typed_words(inputs: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in inputs.items():
        if isinstance(value, dict):
            yield from _typed_words(value)
        elif isinstance(value, str) and isinstance(key, str) and is_typed(key):
            yield from _TYPED_WORD.findall(value)
