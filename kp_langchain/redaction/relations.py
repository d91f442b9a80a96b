"""How a name and its value stand to each other in a sentence.

A value after a sign (`password: ...`) is what the name says, whatever it looks like; that is for
`named_values`. Everywhere else the value itself must be evident, and the relations are tried in this
order: the more certain the relation, the earlier.

- verb: "the password is ...", "das Passwort lautet ...", "密码是...", "is now ...";
- nearby: a random value a few words after the name of a key, "the key for acme expires ...";
- the relations of `links.toml`: "changed the password to ...", "the password (...)", on the next line;
- space: "with password ...", "PASSWORD ...";
- before: "... is the password", "use ... as the API key", "... (token)";
- beside: an unmistakable value among the words after the name, or before it.
"""

from __future__ import annotations

import itertools
import re

from kp_langchain.redaction.extents import (
    TYPOGRAPHIC_QUOTES,
    Extent,
    quoted_value,
    value_at,
)
from kp_langchain.redaction.field_names import NAMES, SensitiveField, word_set
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.links import (
    BELOW,
    RELATIONS,
    TABLE_EXPRESSIONS,
    code_or_value,
    linked_value,
)
from kp_langchain.redaction.values import (
    CODE_KINDS,
    HASH_LIKE,
    SENTENCE_WORDS,
    is_evident,
    is_mixed,
    is_random,
    is_scrambled,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
)

_RANDOM_KINDS = frozenset(("api_key", "token", "secret", "private_key", "authorization", "session"))


_VERB = TABLE_EXPRESSIONS["verb"]
_NEARBY = TABLE_EXPRESSIONS["nearby"]
_BEFORE = TABLE_EXPRESSIONS["before"]
_BETWEEN = word_set(NAMES["sentences"]["between"])
_NAMES_OF_VALUES = word_set("default value text content fallback it is code key")
_SPACE = lazy_pattern(
    rf"[ \t\u3000]{{1,4}}(?:is[ \t]|[057][ \t])?(?![ \t])|(?=[{TYPOGRAPHIC_QUOTES}])"
)
_GROUPS_REVERSED = lazy_pattern(r"(\d{3}[ \-]\d{3})(?![\d.,\-])")
_VALUE_REVERSED = lazy_pattern(r"[.]?([!-&(-~]{4,200})")
_ENDS_CLAUSE = lazy_pattern(
    r"[.,;!?)]*(?:\s*$|\s*\n|[.,;!?)]\s| (?:and|for|but|on|in case|please)\b)"
)
_ADJECTIVE_ENDINGS = ("ed", "ing", "ly", "able", "ible", "ful", "ive", "ory")
_DIGIT = lazy_pattern("[0-9]")
_DIGIT_OR_DASH = lazy_pattern("[0-9_-]")
_REACH = 256
_KINDS_BESIDE = _RANDOM_KINDS | {"password", "credential"}
_REACH_BEFORE = 80
_REACH_AFTER = 160
_REPLACED = "[REDACTED:"
_MOST_REPLACED = 4
_WORD = lazy_pattern(r"(?<![A-Za-z0-9\\])[A-Za-z0-9!#$%^&*+\-_.~?@/=]{10,512}", re.ASCII)
_STOPS = ".!?="
# Before a value that another name has: "id: ...", but not the speaker of a dialogue
_OTHER_NAME = lazy_pattern(
    r"""(?:(?P<speaker>(?:\n|^|[\]#*.?!][ ]?)\w{1,20}[:>][ ])
    |(?P<hash>(?<!\w)(?:h1|sha\d{1,3}|md5)[:=\-]|W/")
    |(?:^|[\n,;{(\[&?|"'-][ ]{0,3}|(?=\w+["'`\])]{0,2}[ ]?=))(?P<name>\w+)["'`\])]{0,2}[ ]?[=:][ ]?)
    (?:[\w',]{1,8}[ ]){0,3}["'`(]{0,2}\Z""",
    re.VERBOSE,
)
_REMARK = lazy_pattern(r"[ \t](?:#|//|--|/\*)[ \t]")
# One word alone on a line below, with dashes or letters of mixed case
_WORD_BELOW = lazy_pattern(
    r"[^\n]{0,100}\r?\n\s{0,12}[\"'`]{0,2}\w+(?:[_\-]\w|[A-Z])\S*\s{0,8}(?:\n|\Z)"
)
_PHRASE = lazy_pattern(r"[a-z]{3,12}(?:-[a-z]{3,12}){2,8}|[a-z]{3,12}(?:_[a-z]{3,12}){3,8}")
_QUOTES = "\"'`" + TYPOGRAPHIC_QUOTES


def value_in_prose(
    text: str, start: int, end: int, name: str, field: SensitiveField
) -> Extent | None:
    """Return start and end of the value of the name at `text[start:end]` in a sentence, or None.

    Args:
        text: The whole text.
        start: Where the sensitive name starts.
        end: Where it ends.
        name: The name, with the words before it that belong to it.
        field: What it says about its value.
    """
    if _DIGIT.search(text, end, end + _REACH) is None:
        # What shows that a value is one is almost always a digit.
        extent = (
            _verb(text, end, field)
            or (
                field.kind == "password"
                and _WORD_BELOW.match(text, end) is not None
                and linked_value(BELOW, text, start, end, field)
            )
            or _space(text, end, name, field)
        )
    else:
        extent = (
            _verb(text, end, field)
            or (field.kind in _RANDOM_KINDS and _random_nearby(text, end))
            or linked_value(RELATIONS, text, start, end, field)
            or _space(text, end, name, field)
        )
    return extent or _before(text, start, end, field) or _beside(text, start, end, field)


def _verb(text: str, end: int, field: SensitiveField) -> Extent | None:
    match = _VERB.match(text, end)
    if match is None:
        return None
    content = quoted_value(text, match.end())
    extent = content or code_or_value(text, match.end(), field)
    value = text[slice(*extent)] if extent else ""
    if extent is None or "://" in value:
        return None
    is_like_password = looks_like_bare_password if match["short"] else looks_like_password
    if is_like_password(value) or (field.kind in CODE_KINDS and value.isdigit()):
        return extent
    if match["english"] is None:
        return extent if _PHRASE.fullmatch(value) or is_scrambled(value, 10) else None
    if content or any(map(str.isdigit, value)) or looks_generated(value) or value.count("-") > 1:
        return extent
    is_adjective = value.lower().endswith(_ADJECTIVE_ENDINGS) or value.lower() in SENTENCE_WORDS
    is_word = field.kind in ("password", "credential") and not is_adjective
    return extent if is_word and _ENDS_CLAUSE.match(text, extent[1]) else None


def _random_nearby(text: str, end: int) -> Extent | None:
    """Return start and end of a random value a few words after the name of a key or token."""
    match = _NEARBY.match(text, end)
    if match is None:
        return None
    words = match["words"].lower().split()
    if sum(word.rstrip(".,;!") not in _BETWEEN for word in words) > 2:
        return None
    value = match["value"].rstrip(".=" if match["value"].endswith(".") else ".")
    is_hash = HASH_LIKE.fullmatch(value) is not None
    if not looks_generated(value) or not (is_hash or is_random(value)):
        return None
    if is_hash and words and not match["sign"] and "is" not in words:
        return None
    return match.start("value"), match.start("value") + len(value)


def _space(text: str, end: int, name: str, field: SensitiveField) -> Extent | None:
    space = _SPACE.match(text, end)
    if space is None:
        return None
    at = space.end()
    if field.kind == "password" and field.is_strong and text[at : at + 1] in _QUOTES:
        content = quoted_value(text, at)
        return content if content and not re.search(r"\s", text[slice(*content)]) else None
    extent = value_at(text, at)
    value = text[slice(*extent)] if extent else ""
    if name.isupper() or name.lower() == "pw":
        return extent if looks_like_bare_password(value) else None
    if field.kind in _RANDOM_KINDS - {"secret"}:
        return extent if is_scrambled(value, 12) else None
    return extent if field.is_strong and is_evident(value, field) else None


def _before(text: str, start: int, end: int, field: SensitiveField) -> Extent | None:
    """Return start and end of the value in "... is the password"."""
    first = max(0, start - 72)
    if _DIGIT_OR_DASH.search(text, max(0, start - _REACH), start) is None:
        return None
    link = _BEFORE.search(text, first, start)
    if link is None:
        return None
    if link["bracket"] and text[end : end + 1] not in (")", "]"):
        return None
    reach = text[max(0, link.start() - 200) : link.start()][::-1]
    groups = _GROUPS_REVERSED.match(reach) if field.kind in CODE_KINDS else None
    match = groups or _VALUE_REVERSED.match(reach)
    if match is None:
        return None
    value = match[1][::-1].lstrip("\"'`*(,")
    stop = link.start() - match.start(1)
    return (stop - len(value), stop) if is_evident(value, field) else None


def _beside(text: str, start: int, end: int, field: SensitiveField) -> Extent | None:
    """Return start and end of an unmistakable value among the words after the name or before it."""
    if field.kind not in _KINDS_BESIDE or not (field.is_strong or field.kind == "password"):
        return None
    if is_mixed(text[start:end]):
        return None  # "dPw" at the end of a hash
    first = max(0, start - _REACH_BEFORE)
    line_start = text.rfind("\n", first, start) + 1 or first
    # Each pass over the text may replace one value beside the name, and the passes must end.
    if text.count(_REPLACED, line_start, end + _REACH_AFTER) >= _MOST_REPLACED:
        return None
    parts = itertools.chain(
        _words_with_digits(text, end, end + _REACH_AFTER),
        reversed(_words_with_digits(text, line_start, start)),
    )
    for word in filter(None, (_WORD.match(text, part.start()) for part in parts)):
        value = word.group().rstrip(_STOPS)
        if is_unmistakable(value, field):
            sign = _OTHER_NAME.search(text, max(0, word.start() - 60), word.start())
            is_remark = _REMARK.search(text, word.end(), start) is not None
            if (
                not sign
                or sign["speaker"]
                or is_remark
                or (sign["name"] or "").lower() in _NAMES_OF_VALUES
            ):
                return word.start(), word.start() + len(value)
    return None


def _words_with_digits(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Return the long words in `text[start:end]` if a digit is in it."""
    has_digit = _DIGIT.search(text, start, end) is not None
    return list(_WORD.finditer(text, start, end)) if has_digit else []
