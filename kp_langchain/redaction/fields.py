"""Names that mark their value as sensitive, and whether a value is a real secret.

A name such as `password`, `apiKey` or "Mot de passe" is split into words (camel, snake, kebab case).
Its last word says what it is, as in English: a `token_limit` is a limit, an `access_token` is a
token. So look-alikes (`tokenizer`, `monkey`, `password_policy`) need no list of their own. The words
are in `tables/names.toml`. A value may also be a placeholder such as `<token>`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kp_langchain.redaction.national_ids import FORMAL_KINDS, has_form, label_kind
from kp_langchain.redaction.spans import PLACEHOLDER, lazy_pattern, load_table, word_set

# ------------------------------------------------------------------ names


class SensitiveField(NamedTuple):
    """What a sensitive field name says about its value.

    Attributes:
        kind: The kind of the value, as the placeholder names it.
        is_strong: Whether every value is sensitive, rather than only one that looks random.
        is_identifier: Whether the value identifies a person; such a value is kept at level
            "private".
    """

    kind: str
    is_strong: bool = True
    is_identifier: bool = False


# Words in Latin letters, numbers, words in other letters.
_WORD = lazy_pattern(
    r"[Bb](?:ase|ASE)?64(?![0-9])|[A-Z]+(?![a-z])|[A-Z]?[a-zß]+|[0-9]+|[\u0370-\u1dff\u2c00-\u2dff\u3040-\ud7ff]+"
)
_MAX_NAME = 128
_LONGEST_PHRASE = 4
# What follows the noun of a label: "Password (again)", "Token for the gateway".
_AFTER_NOUN = lazy_pattern(r"(?<=[^\W_]) ?(?: (?:for|of|to|from)\b|[(\[]).*")
_WEAK_KEY = SensitiveField("api_key", is_strong=False)


def _unaccented(letter: str) -> str:
    base = unicodedata.normalize("NFD", letter)[0]
    return base if base.isascii() else {"ł": "l", "ø": "o", "đ": "d", "ı": "i"}.get(letter, letter)


_ACCENTED = lazy_pattern("[\u00c0-\u024f\u1e00-\u1eff]")
_ACCENTS = {code: _unaccented(chr(code)) for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))}


def without_accents(text: str) -> str:
    """Return the text, of the same length, with plain Latin letters instead of accented ones."""
    if text.isascii():
        return text
    return _ACCENTED.sub(lambda match: _ACCENTS[ord(match[0])], text)


def split_name(name: str) -> list[str]:
    """Split a name into its lower-case words: `sharedSecret2` gives shared, secret, 2."""
    return [word.lower() for word in _WORD.findall(without_accents(name))]


NAMES = load_table("names")
_NOUNS: dict[tuple[str, ...], SensitiveField] = {
    tuple(split_name(noun)): SensitiveField(
        group["kind"], group.get("value") != "random", group.get("person", False)
    )
    for group in NAMES["telling"]
    for nouns in group["words"].values()
    for noun in nouns.split()
}
_KEYS_ONLY = {
    tuple(split_name(noun))
    for group in NAMES["telling"]
    if group.get("keys_only")
    for noun in group["words"]["en"].split()
}
_QUALIFIERS = word_set(NAMES["qualifiers"]["words"])
_QUALIFIERS_OF_KEYS = ("base", "id")
_NO_NOUNS = word_set(NAMES["questions"]["words"]) | word_set(NAMES["states"]["words"])
_STATES = word_set(NAMES["states"]["words"])
# What a noun means after the word before it; None if it is harmless.
_OWNED: dict[tuple[str, ...], SensitiveField | None] = {
    (*split_name(owner), noun): SensitiveField(group["kind"]) if "kind" in group else None
    for group in NAMES["owned"]
    for noun in group["nouns"].split()
    for owner in group["owners"].split()
}
_MEANINGS: dict[tuple[str, ...], SensitiveField | None] = {**_OWNED, **_NOUNS}
_COMPOUND_ENDINGS = NAMES["compounds"]["words"].split()
_ENDINGS = (*_COMPOUND_ENDINGS, *NAMES["compounds"]["random"].split())
_OTHER_SCRIPTS = {
    "".join(noun): field for noun, field in _NOUNS.items() if not "".join(noun).isascii()
}
_LAST_WORDS = {noun[-1] for noun in _NOUNS} | word_set("key keys token tokens code codes id pass")


@lru_cache(maxsize=8192)
def classify_name(name: str) -> SensitiveField | None:
    """Return what a name says about its value, or None if the name is not sensitive.

    Args:
        name: The name of a mapping key, header, variable, flag or column, or the label of a form's
            field. A text of more than 128 characters is not a name.
    """
    if not name or len(name) > _MAX_NAME or "[REDACTED:" in name:
        return None
    is_label = " " in name
    words = split_name(_AFTER_NOUN.sub("", name) if is_label else name)
    if "without" in words:
        return None
    if len(words) < 2 or words[0] not in _NO_NOUNS:
        identifier = label_kind(name) if not _find_phrase(words) else None
        if identifier is not None:
            return SensitiveField(identifier, is_identifier=True)
        return _classify_words(words)
    field = _classify_words(words[1:]) if is_label and words[0] in _STATES else None
    return field._replace(is_strong=False) if field else None


@lru_cache(maxsize=8192)
def classify_secret(name: str) -> SensitiveField | None:
    """Return what a name says about its value, or None if that is no secret."""
    field = classify_name(name)
    return None if field and field.is_identifier else field


def _classify_words(words: list[str]) -> SensitiveField | None:
    if words[-2:] == ["key", "id"] and len(words) > 2:
        return _WEAK_KEY
    core = _without_qualifiers(words)
    phrase = _find_phrase(words) or _find_phrase(core)
    if phrase or not core:
        return _MEANINGS.get(phrase)
    if core[-1] in ("key", "keys"):
        return _WEAK_KEY if len(words) > 1 else None
    return _NOUNS.get((core[-1],)) or _classify_compound(core[-1])


def _find_phrase(words: list[str]) -> tuple[str, ...]:
    """Return the last two to four words if they have a meaning together."""
    phrases = (tuple(words[-length:]) for length in range(min(_LONGEST_PHRASE, len(words)), 1, -1))
    return next((phrase for phrase in phrases if phrase in _MEANINGS), ())


def _without_qualifiers(words: list[str]) -> list[str]:
    """Return the words up to the noun; a single word is the noun, whatever it is."""
    end = len(words)
    while end > 1:
        before, last = words[end - 2 : end]
        of_key = end > 2 and before == "key" and last in _QUALIFIERS_OF_KEYS
        if not (of_key or last in _QUALIFIERS or last.isdigit()):
            break
        end -= 1
    return words[:end]


@lru_cache(maxsize=8192)
def may_end_name(name: str) -> bool:
    """Return whether a name may be the end of a sensitive name of several words.

    Args:
        name: A name that is not sensitive by itself, such as "key" in "API key".
    """
    if len(name) > _MAX_NAME:
        return False
    words = _without_qualifiers(split_name(name))
    if not words or words[-1] in _QUALIFIERS:  # it only qualifies a noun before it
        return True
    return words[-1] in _LAST_WORDS or _classify_compound(words[-1]) is not None


def _classify_compound(word: str) -> SensitiveField | None:
    """Return what a word says that ends in a noun: "dbpassword", "snykkey"."""
    if not word.isascii():  # scripts that put no space between words
        return next((_OTHER_SCRIPTS[noun] for noun in _OTHER_SCRIPTS if word.endswith(noun)), None)
    if not word.endswith(_ENDINGS):
        return None
    for ending in _ENDINGS:
        owner = word.removesuffix(ending)
        if owner == word:
            continue
        if (owner, ending) in _OWNED:
            return _OWNED[owner, ending]
        if owner in _NO_NOUNS:
            return None
        if ending in _COMPOUND_ENDINGS:
            return _NOUNS[ending,]
        return _WEAK_KEY if len(owner) > 1 else None  # a "monkey" has no random value
    return None


def _has_stem(noun: tuple[str, ...], one_word_stems: Iterable[str]) -> bool:
    return any(any(map(word.__contains__, one_word_stems)) for word in noun)


def _choose_stems() -> list[tuple[str, ...]]:
    """Return nouns of which every sensitive name in a text contains one; most are one short word."""
    one_word_stems = ["key", "token", "code", "auth"]
    stems: list[tuple[str, ...]] = [(stem,) for stem in one_word_stems]
    for noun in sorted(_NOUNS, key=lambda noun: (len(noun), max(map(len, noun)))):
        if noun not in _KEYS_ONLY and not (noun[-1].isascii() and _has_stem(noun, one_word_stems)):
            stems.append(noun)
            if len(noun) == 1:
                one_word_stems.append(noun[0])
    return stems


STEMS = _choose_stems()
_ONE_WORD_STEMS = [stem[0] for stem in STEMS if len(stem) == 1]
TAILS = {
    noun[place:]
    for noun in _NOUNS
    for place in range(1, len(noun))
    if _has_stem(noun[:place], _ONE_WORD_STEMS) and not _has_stem(noun[place:], _ONE_WORD_STEMS)
}
"""Words after a stem that belong to the name: the "number" of "card number"."""

# ------------------------------------------------------------------ values

_EMPTY_WORDS = word_set(NAMES["empty"]["words"])
SENTENCE_WORDS = word_set(NAMES["sentences"]["words"])
"""Words that may stand where a value would: "the password is required"."""

NEVER_WORDS = frozenset(("token", "session", "authorization", "credential"))
"""Kinds whose values are no words: "auth: session expired", "id-token: write"."""

CODE_KINDS = frozenset(("otp", "pin", "cvv"))
_FORMS = {name: lazy_pattern(row["form"]) for name, row in load_table("values").items()}
_TEMPLATE = lazy_pattern(
    "|".join(row["form"] for row in load_table("placeholders")["placeholder"]),
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_LEADING_SCHEME = lazy_pattern(
    r"(?:Bearer|Basic|Token|Key|ApiKey|Bot) (?=[{<$*]|\w{0,12}\*)", re.IGNORECASE
)
_ID = lazy_pattern(rf"(?:{'|'.join(NAMES['sentences']['id_prefixes'].split())})[_\-]")
_LONGEST_PHRASE_OF_VALUES = 6  # words
_FEWEST_DIGITS = 4  # of a token
_FEWEST_DIGITS_OF_IDENTIFIER = 8


def looks_like(form: str, value: str) -> bool:
    """Return whether a value has a form of the table `values.toml`, such as "path"."""
    return _FORMS[form].fullmatch(value) is not None


def looks_generated(value: str) -> bool:
    """Return whether a value looks random rather than written by a person."""
    if not looks_like("generated text", value):
        return False
    if is_scrambled(value, 16):
        return True
    digits = sum(character.isdigit() for character in value)
    letters = sum(character.isalpha() for character in value)
    return digits >= 3 and letters >= 3 and len(set(value)) >= 9


def is_scrambled(value: str, length: int) -> bool:
    """Return whether a value of at least `length` characters changes case or kind very often.

    Names in camel case do so once in five characters, random text once in two.
    """
    if not length <= len(value) <= 4096 or value.islower() or value.isupper():
        return False
    return len(split_name(value)) * 3 > len(value)


def is_unmistakable(value: str, field: SensitiveField) -> bool:
    """Return whether a value is irregular enough to be redacted without `=` or a verb before it."""
    if not 10 <= len(value) <= 512 or not any(map(str.isdigit, value)) or _ID.match(value):
        return False
    if looks_like("lines of a file in a link", value):
        return False
    if field.kind in ("password", "credential") and (
        looks_like("password of two words", value) or looks_like("word with a hard sign", value)
    ):
        return True
    has_cases = any(map(str.islower, value)) and any(map(str.isupper, value))
    return has_cases and is_mixed(value)


def is_mixed(value: str) -> bool:
    """Return whether almost every second character differs from the last in case or kind."""
    return len(split_name(value)) > 0.4 * len(value)


def looks_like_password(value: str) -> bool:
    """Return whether a value is one word of mixed characters, as passwords are."""
    letters = any(map(str.isalpha, value))
    return 5 <= len(value) <= 128 and letters and looks_like("password", value)


def looks_like_bare_password(value: str) -> bool:
    """Return whether a value is a password even if only a space precedes it."""
    return (
        len(value) >= 6
        and looks_like_password(value)
        and (any(map(str.isdigit, value)) or _is_scrambled_with_sign(value))
        and "://" not in value
        and not looks_like("argument", value)
        and not looks_like("technical term", value)
    )


def _is_scrambled_with_sign(value: str) -> bool:
    """Return whether a value without digits changes case very often, and has a sign inside."""
    return len(value) >= 8 and looks_like("word with a sign inside", value) and is_mixed(value)


def is_evident(value: str, field: SensitiveField) -> bool:
    """Return whether a value after a sensitive name, without `=`, is sensitive.

    Args:
        value: The value: "hunter22" in "the login takes password hunter22".
        field: What the name beside it says.
    """
    if field.is_identifier:
        return looks_like_bare_password(value)
    if field.kind in CODE_KINDS and looks_like("code", value):
        return field.kind == "cvv" or len(value) > 3
    if field.kind in ("password", "otp") and field.is_strong:
        return looks_like_bare_password(value) or _has_odd_letters(value)
    if field.kind in ("password", "secret", "credential"):
        return looks_like_bare_password(value) and len(value) >= 8
    return is_random(value) or (len(value) >= 20 and looks_like("hash or UUID", value))


def _has_odd_letters(value: str) -> bool:
    """Return whether a value is a phrase joined by dashes, or letters of mixed case."""
    return looks_like("four words and more", value) or (value.isalpha() and is_scrambled(value, 10))


def is_random(value: str) -> bool:
    """Return whether a value looks generated, and is no path and no name composed of words."""
    if (
        looks_like("path", value)
        or looks_like("words and numbers with signs", value)
        or _ID.match(value)
    ):
        return False
    return looks_generated(value)


def is_placeholder(value: str) -> bool:
    """Return whether a value is a null, a variable, a template or an earlier placeholder."""
    content = _LEADING_SCHEME.sub("", value.strip().strip("\"'`,;"))
    if not content or content.strip("[]()").lower() in _EMPTY_WORDS:
        return True
    if len(content) < 4 and not any(map(str.isalnum, content)):
        return True  # the separator between two quoted strings
    if len(content) > 120:
        return False
    if looks_like("name of a value", content) and not content.isalpha() and _names_value(content):
        return True
    return PLACEHOLDER.fullmatch(content) is not None or _TEMPLATE.fullmatch(content) is not None


def _names_value(content: str) -> bool:
    last = re.split("[@:?/]", content)[-1]
    return classify_name(last) is not None


def is_phrase(value: str) -> bool:
    """Return whether a value of several words may be a password, rather than prose about one."""
    words = value.split()
    return len(words) <= _LONGEST_PHRASE_OF_VALUES and not any(
        word.lower() in SENTENCE_WORDS or classify_name(word) for word in words
    )


def _is_word(value: str) -> bool:
    """Return whether a value is a short word, or a name in capitals."""
    if not (value.isascii() and value.isalpha()):
        return False
    return len(value) <= 6 or value.istitle() or classify_name(value) is not None


def _is_something_else(value: str, kind: str) -> bool:
    """Return whether a value is certainly none of a kind, but a word, a number, a file or an id."""
    if kind in NEVER_WORDS:
        is_label = " " in value and value[0].isupper() and value.replace(" ", "").isalpha()
        if is_label or _is_word(value.strip()) or (value.isdigit() and len(value) < _FEWEST_DIGITS):
            return True
    if kind == "token":
        return looks_like("ticker", value) or looks_like("version", value)
    if kind == "password":
        return False
    if kind == "private_key" and looks_like("id of a key", value):
        return True
    is_file = looks_like("file of keys", value) or looks_like("path", value)
    return is_file and not looks_generated(value)


def _fits_weak_name(value: str, field: SensitiveField) -> bool:
    if field.kind == "password":
        return looks_like_password(value) and not looks_like("name of a test", value)
    if field.is_identifier:
        return sum(map(str.isdigit, value)) >= _FEWEST_DIGITS_OF_IDENTIFIER
    return is_random(value) and not looks_like("word and number", value)


def is_sensitive(value: str, name: str, field: SensitiveField) -> bool:
    """Return whether `value`, the value of the sensitive field `name`, must be redacted.

    Args:
        value: The text of the value, without quotes.
        name: The name of the field.
        field: What the name marks its value as.
    """
    if not field.is_strong and not _fits_weak_name(value, field):
        return False
    if is_placeholder(value) or (value.isdigit() and len(value) < 3):
        return False
    kind = field.kind
    if kind == "session" and looks_like("hash or UUID", value) and value.count("-") == 4:
        return False  # the id of a conversation or a run
    if _is_something_else(value, kind):
        return False
    if not field.is_strong:
        return True
    if kind == "pin":
        is_sentence = " " in value.strip() and any(map(str.isalpha, value))
        is_code = 4 <= len(value.strip()) <= 12 and any(map(str.isdigit, value))
        return is_code and not is_sentence and not value.endswith("=")  # the name of a value
    if kind == "cookie":
        return "=" in value or (" " not in value and (len(value) > 4 or not value.isdigit()))
    if kind == "cvv":
        return any(map(str.isdigit, value))
    if kind in FORMAL_KINDS or kind == label_kind(name) == "account":
        return has_form(name, value)
    if field.is_identifier:
        return sum(map(str.isdigit, value)) >= (6 if kind == "phone" else 4)
    if value.lower() == (split_name(name) or [""])[-1]:
        return False  # password=password
    # PWD and OLDPWD hold the shell's working folders.
    return not (name.lower().endswith("pwd") and looks_like("path", value))
