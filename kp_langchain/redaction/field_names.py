"""Names that mark their value as sensitive: `password`, `apiKey`, `X-Auth-Token`, "Mot de passe".

A name is split into words (camel, snake, kebab case). Its last word says what it is, as in English:
a `token_limit` is a limit, an `access_token` is a token. So look-alikes (`tokenizer`, `monkey`,
`password_policy`) need no list of their own. The words are in `tables/names.toml`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.national_ids import label_kind
from kp_langchain.redaction.tables import load_table


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

    @property
    def may_hold_fields(self) -> bool:
        """Whether a mapping under this name may also hold ordinary fields with names of their own."""
        return not self.is_strong or self.kind in _KINDS_WITH_FIELDS


_KINDS_WITH_FIELDS = frozenset({"session", "authorization", "token", "card", "pin"})
# Words in Latin letters, numbers, words in other letters.
_WORD = lazy_pattern(
    r"[Bb](?:ase|ASE)?64(?![0-9])|[A-Z]+(?![a-z])|[A-Z]?[a-zß]+|[0-9]+|[\u0370-\u1dff\u2c00-\u2dff\u3040-\ud7ff]+"
)
_MAX_NAME = 128
_LONGEST_PHRASE = 4
# What follows the noun of a label: "Password (again)", "Token for the gateway".
_AFTER_NOUN = lazy_pattern(r"(?<=[^\W_]) ?(?: (?:for|of|to|from)\b|[(\[]).*")
_WEAK_KEY = SensitiveField("api_key", is_strong=False)


def word_set(text: str | Iterable[str]) -> frozenset[str]:
    """Return the words of `text`, which are separated by white space."""
    return frozenset((text if isinstance(text, str) else " ".join(text)).split())


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
MODEL_TOKEN_WORDS = {
    owner for (*_, owner, noun), field in _OWNED.items() if noun == "token" and not field
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
