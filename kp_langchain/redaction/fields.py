"""Values under telling names inside a text.

Found in one walk over the places where a telling word may stand: `key=value`, `key: value`, JSON
and Python literals at any depth of escaping, headers, `--flag value`, XML, pairs, and "the
password is ...".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.keys import Telling, split_name, telling, word_set
from kp_langchain.redaction.quoting import closing_quote
from kp_langchain.redaction.spans import Span, glued_length, trie
from kp_langchain.redaction.values import fills_the_place, is_sensitive, looks_generated

# Every telling name holds one of these; the text is searched for them in lower case.
_STEM = re.compile(
    trie(
        word_set(
            "pass pwd psw pword secret token key auth cookie sess cred otp pin cvv cvc csc cvn ssn "
            "iban card account social security code jwt bearer sig kennwort senha contrasena "
            "wachtwoord access xsrf csrf mnemonic phrase connection nino пароль 密码 密碼"
        )
    )
)
_NAME_LEFT = re.compile(r"[A-Za-z0-9_\-]{0,64}")
_NAME_RIGHT = re.compile(r"[A-Za-z0-9_\-]{0,64}")
_WORDS_LEFT = re.compile(r" (?:[A-Za-z0-9]{1,20}(?: |(?![A-Za-z0-9]))){1,2}")
_ASSIGN = re.compile(
    r"(?P<close>\\{0,40}[\"'`])?\]?(?:[ \t]\([^()\n]{1,30}\))?"
    r"(?:[ \t](?:is|was)(?=[ \t]{0,4}[:=]))?[ \t]{0,64}"
    r"(?P<sign>:[ \t]?(?:str|bytes|[Ss]tring|SecretStr|Optional\[str\]|str \| None)[ \t]{0,8}="
    r"|=>|:=|={1,3}|:(?!:)|%3[aAdD])[ \t]{0,64}"
)
_NEXT_LINE = re.compile(r"\s{1,64}(?=\\{0,40}[\"'])")
_IS = re.compile(r"[\"'`]?[ \t]{1,4}(?:is|was|are|equals)[ \t]{1,4}(?:now |still |set to )?")
_GAP = re.compile(r"[ \t]{1,64}")
_NEXT_CELL = re.compile(r"[ \t]{0,40}(?:\|[ \t]{0,40}|\t)(?![ \t|])")
_PAIRED = re.compile(
    r"\\{0,40}[\"'][ \t]{0,8},\s{0,64}"
    r"(?:(?:\\{0,40}[\"'])?[Vv]alue\\{0,40}[\"']?\s{0,8}[:=]\s{0,8})?"
    r"(?=\\{0,40}[\"'])"
)
_OPEN_QUOTE = re.compile(r"(?:[bBrRuUfF]{1,2}(?=[\"']))?(\\{0,127})([\"'`])")
_BARE = re.compile(
    r"(?:\[REDACTED:[a-z0-9_#]{1,50}\]|[^\s\x00-\x1f\x7f\"'`,;<>(){}\[\]\\&|"
    r"\u3002\uff0c\uff1b\u3001\uff09\u300d]"
    r"|&(?![A-Za-z_][\w.\-]{0,40}=|amp;|&)|\\(?![nrtu\"'\\]))+"
)
_CALLED = re.compile(r"[A-Za-z_][\w.]*")
_LINE_START = re.compile(r"(?:^|[\n\r])[ \t>*#\-]{0,40}(?:export )?$")
_LINE = re.compile(r"[^\n\r\\\"'{}<>;]{1,200}")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Bot|Key|OAuth)[ \t]{1,8}", re.IGNORECASE)
_LONG_SCHEME = re.compile(r"(?:Digest|AWS4-HMAC-\w+|Hawk|NTLM|Negotiate|SharedKey) ", re.IGNORECASE)
_OPENED_BEFORE = re.compile(r"([\"'])(\\{0,40})")
_LOGIN_BEFORE = re.compile(r"\blogin[ \t]{1,4}[^\s]{1,64}[ \t]{1,4}$")
_TO_LINE_END = re.compile(r"[^\n\r]{1,4096}")
_COOKIES = re.compile(
    r"[^\s=;,\"'\\]{1,256}=[^\s;,\"'\\]{0,4096}"
    r"(?:;[ \t]*[^\s=;,\"'\\]{1,256}(?:=[^\s;\"'\\]{0,4096})?)*"
)
_WORD_ONLY = re.compile(r"[^\W\d_]+(?:['\-][^\W\d_]+)?")
_ENDS_CLAUSE = re.compile(
    r"[.,;!?)]*(?:\s*$|\s*\n|[.,;!?)]\s| (?:and|for|but|on|in case|please)\b)"
)
_FUNCTION_WORDS = word_set(
    "a an the this that these those to too not no is are was were be been being in on at of for "
    "from with by as it its your my our their his her must should can could may might will would "
    "has have had do does did required missing invalid incorrect wrong weak strong expired correct "
    "empty too only also used valid blank null none here there same different stored sent set "
    "shown hidden case never always one just now still already unknown unique if when what which "
    "about good bad safe secure public private available optional mandatory key all any "
    "raise return pass break continue yield await assert print else lambda throw new del import"
)
_OPENS_LIST = re.compile(r"\[\s{0,64}\\{0,40}[\"'\[{]")
_OPENS_MAPPING = re.compile(r"\{\s{0,64}\\{0,40}[\"']")
_MARK = re.compile(r"\\{0,127}[\"']|[{}\[\]]")
_IS_NAME = re.compile(r"\s{0,8}:")
_MAX_QUOTED = 16_384
_MAX_MARKS = 128  # brackets and names, not counting the values found
_MAX_INSIDE = 4  # levels of nesting


def find_fields(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    """Yield the values under telling names in `text`.

    Args:
        text: Any text; the work grows linearly with its length.
        low: The same text in lower case, of the same length.
        identifiers: Whether names that tell of a person's identifiers count.
    """
    done = 0
    for stem in _STEM.finditer(low):
        if stem.start() < done:
            continue
        reach = text[max(done, stem.start() - 64) : stem.start()]
        left = _NAME_LEFT.match(reach[::-1])
        start = stem.start() - (left.end() if left else 0)
        right = _NAME_RIGHT.match(text, stem.end())
        end = right.end() if right else stem.end()
        done = end
        if text.startswith("[REDACTED:", start - 10) and start >= 10:
            continue
        if start > 0:
            start = min(start + _escape_inside(text, start), stem.start())
        for span in _values(text, start, end):
            if identifiers or not span[1].identifier:
                yield span[0]
                done = max(done, span[0].end)


def _escape_inside(text: str, start: int) -> int:
    r"""Return how much of the name at `start` belongs to an escape before it: `\nPASSWORD`."""
    for length in (1, 2, 3, 5, 6):
        if glued_length(text, start + length) > length:
            return length
    return 0


def _values(text: str, start: int, end: int) -> Iterator[tuple[Span, Telling]]:
    """Yield the spans of the values that belong to the name at `text[start:end]`."""
    after = text[end : end + 1]
    if not after:
        return
    name = text[start:end]
    tells = telling(name)
    if tells is None:
        name, tells = _with_words_before(text, start, end)
        if tells is None:
            return
    span: tuple[int, int] | None = None
    assigned = _ASSIGN.match(text, end)
    if assigned is not None:
        if tells.kind in ("authorization", "cookie") and assigned["sign"] in (":", "=", "=>"):
            span = _header(text, start, assigned, tells)
            if span is not None:
                if not fills_the_place(text[slice(*span)]):
                    yield Span(*span, tells.kind), tells
                return
        at = assigned.end()
        line = _NEXT_LINE.match(text, at)
        yield from _each_value(text, line.end() if line else at, start, assigned, name, tells)
        return
    if after == ">" and text[max(0, start - 1) : start] == "<":
        close = text.find("<", end + 1, end + _MAX_QUOTED)
        span = (end + 1, close) if close > 0 else None
    elif name.startswith("-") and after in " \t":
        gap = _GAP.match(text, end)
        at = gap.end() if gap else end
        if text[at : at + 1] != "-":
            span = _quoted(text, at) or _bare(text, at)
    elif after in "\"'\\" and (paired := _PAIRED.match(text, end)) is not None:
        span = _quoted(text, paired.end())
    elif after in " \t\"'`" and (said := _IS.match(text, end)) is not None:
        span = _said(text, said.end(), tells)
    elif (cell := _NEXT_CELL.match(text, end)) is not None:
        span = _bare(text, cell.end())
        if span is not None and not any(map(str.isdigit, text[slice(*span)])):
            span = None
    elif after == " " and tells.kind == "password":
        # SQL: ALTER ROLE app PASSWORD 'x'; netrc: login bob password x
        span = _quoted(text, end + 1)
        if span is None and _LOGIN_BEFORE.search(text[max(0, start - 80) : start]):
            span = _bare(text, end + 1)
    if span is not None and is_sensitive(text[slice(*span)], name, tells):
        yield Span(*span, tells.kind), tells


def _with_words_before(text: str, start: int, end: int) -> tuple[str, Telling | None]:
    """Read the name together with up to two words before it: "API Key", "card number"."""
    before = _WORDS_LEFT.match(text[max(0, start - 44) : start][::-1])
    if before is None:
        return "", None
    words = before.group()[::-1].split()
    name = " ".join([*words, text[start:end]])
    return name, telling(name)


def _each_value(
    text: str,
    at: int,
    start: int,
    assigned: re.Match[str],
    name: str,
    tells: Telling,
) -> Iterator[tuple[Span, Telling]]:
    """Yield the value at `at`, or each string of the list or mapping there."""
    if _OPENS_LIST.match(text, at) or (not tells.open and _OPENS_MAPPING.match(text, at)):
        for inner in _strings_inside(text, at):
            if is_sensitive(text[slice(*inner)], name, tells):
                yield Span(*inner, tells.kind), tells
        return
    span = _quoted(text, at)
    if span is None:
        span = _unquoted(text, at, start, assigned, name, tells)
    if span is not None and is_sensitive(text[slice(*span)], name, tells):
        yield Span(*span, tells.kind), tells


def _strings_inside(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the strings that are values in the list or mapping that opens at `at`."""
    depth = 0
    patience = _MAX_MARKS
    while patience and (mark := _MARK.search(text, at, at + _MAX_QUOTED)) is not None:
        at = mark.end()
        patience -= 1
        if mark.group() in "{[":
            depth += 1
        elif mark.group() in "]}":
            depth -= 1
        elif (inner := _quoted(text, mark.start())) is not None:
            close = _OPEN_QUOTE.match(text, inner[1])
            at = close.end() if close else inner[1]
            if not _IS_NAME.match(text, at):
                yield inner
                patience += 1
        if depth <= 0 or depth > _MAX_INSIDE:
            return


def _quoted(text: str, at: int) -> tuple[int, int] | None:
    """Return the inside of the quoted string that opens at `at`."""
    opening = _OPEN_QUOTE.match(text, at)
    if opening is None:
        return None
    start = opening.end()
    if text.startswith(opening[2] * 2, start) and not opening[1]:
        start += 2
        end = text.find(opening[2] * 3, start, start + _MAX_QUOTED)
        return (start, end) if end > start else None
    closed = closing_quote(text, start, opening[2], len(opening[1]), _MAX_QUOTED)
    if closed is None:  # cut off: what is left of the line belongs to the value
        rest = _TO_LINE_END.match(text, start)
        return (start, rest.end()) if rest else None
    return start, closed


def _bare(text: str, at: int) -> tuple[int, int] | None:
    found = _BARE.match(text, at)
    if found is None:
        return None
    end = found.end()
    while end > at + 1 and text[end - 1] in ".:?":
        end -= 1
    return at, end


def _unquoted(
    text: str,
    at: int,
    start: int,
    assigned: re.Match[str],
    name: str,
    tells: Telling,
) -> tuple[int, int] | None:
    """Return the unquoted value at `at`, unless it is code, a template or prose."""
    span = _bare(text, at)
    if span is None:
        if text[at : at + 1] == "{" and tells.kind == "password" and assigned["sign"] == "=":
            close = text.find("}", at, at + 256)  # ODBC: Pwd={a;b}
            inside = text[at + 1 : close]
            odbc = close > 0 and inside and not fills_the_place("{" + inside + "}")
            return (at, close + 1) if odbc and "{" not in inside else None
        return None
    value = text[slice(*span)]
    if text[span[1] : span[1] + 1] in ("(", "[") and _CALLED.fullmatch(value):
        return None
    if value == "$" or "://" in value or _repeats_name(value, name):
        return None
    spaced = assigned["sign"] == ":" and assigned.end() > assigned.end("sign")
    if spaced and value.lower() in _FUNCTION_WORDS:
        return None
    if _LINE_START.search(text[max(0, start - 48) : start]) and (
        spaced or text[assigned.start("sign") - 1] == " "
    ):
        line = _LINE.match(text, at)
        if line is not None and line.end() > span[1] and len(line.group().split()) <= 6:
            return at, at + len(line.group().rstrip())
    return span


def _repeats_name(value: str, name: str) -> bool:
    """Tell whether an unquoted value is code that speaks of the name again: `token=self.token`."""
    if _CALLED.fullmatch(value) is None:
        return False
    if "." in value and value.split(".")[0] in (
        "self",
        "cls",
        "this",
        "args",
        "config",
        "settings",
    ):
        return True
    words = split_name(name)
    mine = split_name(value)
    return not any(character.isdigit() for character in value) and (
        mine[-1:] == words[-1:]
        or (len(mine) > 1 and mine[0] in ("get", "load", "new", "read"))
        or value.lower().startswith(words[-1])
    )


def _header(
    text: str, start: int, assigned: re.Match[str], tells: Telling
) -> tuple[int, int] | None:
    """Return the value of an Authorization or Cookie header, which may hold blanks."""
    at = assigned.end()
    if _OPEN_QUOTE.match(text, at) is not None:
        return None
    if tells.kind == "cookie":
        cookies = _COOKIES.match(text, at)
        return cookies.span() if cookies else None
    scheme = _SCHEME.match(text, at)
    if scheme is not None:
        return _bare(text, scheme.end()) or (at, at)
    if _LONG_SCHEME.match(text, at) is not None:
        opened = _OPENED_BEFORE.match(text[max(0, start - 41) : start][::-1])
        if opened is not None:
            end = closing_quote(text, at, opened[1], len(opened[2]), 4096)
            if end is not None:
                return at, end
        line = _TO_LINE_END.match(text, at)
        return line.span() if line else None
    return None


def _said(text: str, at: int, tells: Telling) -> tuple[int, int] | None:
    """Return the value in "the password is ...", when it is one and not the sentence going on."""
    quoted = _quoted(text, at)
    if quoted is not None:
        return quoted
    span = _bare(text, at)
    if span is None:
        return None
    value = text[slice(*span)]
    if "://" in value:
        return None
    if any(character.isdigit() for character in value) or looks_generated(value):
        return span
    if value.lower() in _FUNCTION_WORDS or tells.kind not in ("password", "credential"):
        return span if "-" in value.strip("-") and value.count("-") > 1 else None
    if _WORD_ONLY.fullmatch(value) is None:
        return span
    if value.lower().endswith(("ed", "ing", "ly", "able", "ible", "ful")):
        return None
    return span if _ENDS_CLAUSE.match(text, span[1]) else None
