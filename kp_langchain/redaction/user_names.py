r"""User names in home paths, shell prompts and listings: /home/x, C:\\Users\\x, ~x/, x@host:~$."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.field_names import word_set
from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.spans import Span, occurrences

_FOLDERS = ("home", "users", "documents and settings")
_SEPARATOR = r"(?:\\{0,8}/{1,2}|\\{1,16}|%2[Ff]|%5[Cc])"
_NAME = r"[^\s/\\\"'`<>|:*?,;)(\]\[{}$%&\u3000-\u9fff]{1,64}"
_AFTER = re.compile(
    rf"[a-z ]{{4,22}}{_SEPARATOR}(?P<name>{_NAME}(?: {_NAME}){{1,2}}(?=[\\/])|{_NAME})",
    re.IGNORECASE,
)
# The text before the folder: the root of a file system or drive, but not the host of a URL.
_BEFORE_HOME = re.compile(
    rf"(?:^|[^A-Za-z0-9_\\/]|[\s\"'=(:]|\\[nrt]|(?:{_SEPARATOR}(?:var|usr|mnt|export|data|private|nfs|net|Volumes))"
    rf"|\\{{2,16}}[\w.$\-]{{1,40}}(?:\\{{1,8}}[\w.\-]{{1,40}})?|(?<![\w+])(?!https?:|ftps?:|wss?:)[a-z][\w+.\-]{{1,20}}://[\w.\-@:+]{{0,40}}"
    rf"){_SEPARATOR}$"
)
_BEFORE_USERS = re.compile(
    rf"(?:(?:^|[^A-Za-z0-9_.\-/\\]|\\[nrt]|{_SEPARATOR}(?:mnt|cygdrive|host_mnt|run/desktop/mnt/host)){_SEPARATOR}(?:[a-z]{_SEPARATOR})?"
    rf"|(?:^|[^A-Za-z0-9]|\\[nrt])[A-Za-z](?::|%3[Aa]){_SEPARATOR}"
    rf"|file://{_SEPARATOR}|\\{{2,8}}[\w.\-]{{1,64}}\\{{1,8}}(?:[a-z]\$\\{{1,8}})?)$",
    re.IGNORECASE,
)
_GENERIC_USERS = word_set(
    "shared public default runner user username root ubuntu ec2-user vagrant jenkins circleci "
    "home users runneradmin linuxbrew app node vscode all"
)
_TILDE = re.compile(r"~(?<![\w~/]~)(?P<name>[a-z_][a-z0-9_\-]{1,31})(?=/)")
_LISTING = re.compile(
    r"[r\-](?<=[\-dlbcps].)[w\-][xsStT\-](?:[r\-][w\-][xsStT\-]){2}[.+@]?[ \t]{1,4}\d{1,6}[ \t]{1,8}"
    r"(?P<name>[A-Za-z_][\w.\-]{0,31})[ \t]{1,12}(?P<group>[A-Za-z_][\w.\-]{0,31})[ \t]"
)
_PROMPT = re.compile(r"@[\w.\-]{1,63}:[~/][^\s$#%\"'<>]{0,200}[$#](?!\w)")
_PROMPT_USER = re.compile(r"[\w.\-]{1,32}")
_SYSTEM_USERS = word_set(
    "root git www-data nobody daemon bin staff wheel users postgres mysql ftp sys tty disk"
)


def _find_in_folders(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, _FOLDERS):
        match = _AFTER.match(text, at)
        if match is None:
            continue
        name = match["name"]
        before = _BEFORE_HOME if low[at] == "h" else _BEFORE_USERS
        if name.lower() in _GENERIC_USERS or not name.strip(".0123456789"):
            continue
        if before.search(text[max(0, at - 64) : at]) is not None:
            yield Span(*match.span("name"), "home_path")


def _find_after_tildes(text: str, _low: str) -> Iterator[Span]:
    for match in _TILDE.finditer(text):
        if match["name"] not in _GENERIC_USERS:
            yield Span(*match.span("name"), "home_path")


def _find_in_listings(text: str, _low: str) -> Iterator[Span]:
    if "rw" not in text and "r-x" not in text:
        return
    for match in _LISTING.finditer(text):
        for group in ("name", "group"):
            if match[group] not in _SYSTEM_USERS | _GENERIC_USERS:
                yield Span(*match.span(group), "home_path")


def _find_in_prompts(text: str, _low: str) -> Iterator[Span]:
    for match in _PROMPT.finditer(text):
        user = _PROMPT_USER.match(text[max(0, match.start() - 32) : match.start()][::-1])
        if user is not None and user.group()[::-1] not in _SYSTEM_USERS | _GENERIC_USERS:
            yield Span(match.start() - user.end(), match.start(), "home_path")


FINDERS = (
    Finder(_find_in_folders, ("/", "\\", "%"), _FOLDERS),
    Finder(_find_after_tildes, ("~/",)),
    Finder(_find_in_listings, (ANY_DIGIT,)),
    Finder(_find_in_prompts, ("@:$", "@:#")),
)
"""Find user names in home paths, listings and prompts."""
