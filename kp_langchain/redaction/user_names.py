r"""User names in home paths, shell prompts and listings: /home/x, C:\\Users\\x, ~x/, x@host:~$."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.field_names import word_set
from kp_langchain.redaction.finders import ANY_DIGIT, NON_ASCII, Finder
from kp_langchain.redaction.spans import Span, occurrences

_FOLDERS = ("home", "users", "documents and settings")
_SEPARATOR = r"(?:\\{0,8}/{1,2}|\\{1,16}|%2[Ff]|%5[Cc])"
_NAME = r"[^\s/\\\"'`<>|:*?,;)(\]\[{}$%&\u3000-\u9fff]{1,64}"
_AFTER = re.compile(
    rf"(?:home|users|documents and settings){_SEPARATOR}"
    rf"(?P<name>{_NAME}(?: {_NAME}){{1,2}}(?=[\\/])|{_NAME})",
    re.IGNORECASE,
)
# The text before the folder: the root of a file system or drive, but not the host of a URL.
_BEFORE_HOME = re.compile(
    rf"""(?:^ | [^A-Za-z0-9_\\/] | \\[nrt]
    | (?:{_SEPARATOR}(?:var|usr|mnt|export|data|private|nfs|net|Volumes))
    | \\{{2,16}}[\w.$\-]{{1,40}}(?:\\{{1,8}}[\w.\-]{{1,40}})?
    | (?<![\w+])(?!https?:|ftps?:|wss?:)[a-z][\w+.\-]{{1,20}}://[\w.\-@:+]{{0,40}}
    ){_SEPARATOR}$""",
    re.VERBOSE,
)
# On macOS the folder is /Users; "/users/list" is a route of a web server.
_BEFORE_USERS = re.compile(
    rf"""(?:(?:^|[^A-Za-z0-9_.\-/\\]|\\[nrt]){_SEPARATOR}(?:[a-z]{_SEPARATOR}|(?=\Z))
    | {_SEPARATOR}(?:mnt|cygdrive|host_mnt|run/desktop/mnt/host){_SEPARATOR}[a-z]{_SEPARATOR}
    | (?:^|[^A-Za-z0-9]|\\[nrt])[A-Za-z](?::|%3[Aa]){_SEPARATOR}
    | file://{_SEPARATOR} | \\{{2,8}}[\w.\-]{{1,64}}\\{{1,8}}(?:[a-z]\$\\{{1,8}})?)$""",
    re.IGNORECASE | re.VERBOSE,
)
_ROUTE_BEFORE = re.compile(r"(?:^|[^A-Za-z0-9_.\-/\\:]|\\[nrt])/$")
_GENERIC_USERS = word_set(
    "shared public default runner user username root ubuntu ec2-user vagrant jenkins circleci "
    "home users runneradmin linuxbrew app node vscode all env envs venv venvs conda data "
    "src code workspace work web www site lib bin share projects user-name your-name yourname "
    "your_username index assets static about login "
)
# The last part of a path is a file, not the folder of a user.
_FILE = re.compile(
    r".+\.(?:html?|php|aspx?|jsx?|tsx?|vue|css|py|json|txt|md|png|jpe?g|svg|xml|ya?ml|log|sh|db)",
    re.IGNORECASE,
)
_TILDE = re.compile(r"~(?<![\w~/]~)(?P<name>[a-z_][a-z0-9_\-]{1,31})(?=/)")
_LISTING = re.compile(
    r"""[r\-](?<=[\-dlbcps].)[w\-][xsStT\-](?:[r\-][w\-][xsStT\-]){2}[.+@]?[ \t]{1,4}\d{1,6}[ \t]{1,8}
    (?P<name>[A-Za-z_][\w.\-]{0,31})[ \t]{1,12}(?P<group>[A-Za-z_][\w.\-]{0,31})[ \t]""",
    re.VERBOSE,
)
# bob@host:~$, [bob@host src]$, bob@host ~ %, (bob㉿kali)-[~]
_PROMPT = re.compile(
    r"@[\w.\-]{1,63}(?::[~/][^\s$#%\"'<>]{0,200}[$#](?!\w)|[ ][^\s\]\[\"'<>]{1,80}(?:\][$#]|[ ][%$#][ ])"
    r")|㉿[\w\-]{1,63}\)"
)
_PROMPT_USER = re.compile(r"[\w.\-]{1,32}")
# uid=1000(bob) gid=1000(bob)
_ID_OUTPUT = re.compile(r"[ug]id=\d{1,10}\((?P<name>[A-Za-z_][\w.\-]{0,31})\)")
_SYSTEM_USERS = _GENERIC_USERS | word_set(
    "git www-data nobody daemon staff wheel admin adm docker postgres mysql redis nginx apache http "
    "mail ftp sys tty disk syslog sshd man news backup systemd deploy"
)


def _find_in_folders(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, _FOLDERS):
        match = _AFTER.match(text, at)
        if match is None or not _is_user(match["name"], text[match.end() : match.end() + 1]):
            continue
        before = text[max(0, at - 64) : at]
        if low[at] == "h":
            is_home = _BEFORE_HOME.search(before)
        else:
            is_home = _BEFORE_USERS.search(before)
            if is_home and text[at] == "u" and _ROUTE_BEFORE.search(before):
                continue
        if is_home:
            yield Span(*match.span("name"), "home_path")


def _is_user(name: str, following: str) -> bool:
    """Return whether the folder `name`, before the character `following`, is that of a user."""
    if name.lower() in _GENERIC_USERS or not name.strip(".0123456789"):
        return False
    is_file = following not in ("/", "\\") and _FILE.fullmatch(name) is not None
    return not (name.startswith(".") or is_file)


def _find_after_tildes(text: str, _low: str) -> Iterator[Span]:
    for match in _TILDE.finditer(text):
        if match["name"] not in _GENERIC_USERS:
            yield Span(*match.span("name"), "home_path")


def _find_in_listings(text: str, _low: str) -> Iterator[Span]:
    for match in _LISTING.finditer(text):
        if match["name"] not in _SYSTEM_USERS:
            yield Span(*match.span("name"), "home_path")
            if match["group"] == match["name"]:  # the user's own group; others are of a machine
                yield Span(*match.span("group"), "home_path")


def _find_in_prompts(text: str, _low: str) -> Iterator[Span]:
    for match in _PROMPT.finditer(text):
        user = _PROMPT_USER.match(text[max(0, match.start() - 32) : match.start()][::-1])
        if user is not None and user.group()[::-1] not in _SYSTEM_USERS:
            yield Span(match.start() - user.end(), match.start(), "home_path")


def _find_in_output_of_id(text: str, _low: str) -> Iterator[Span]:
    for match in _ID_OUTPUT.finditer(text):
        if match["name"] not in _SYSTEM_USERS:
            yield Span(*match.span("name"), "home_path")


FINDERS = (
    Finder(_find_in_folders, ("/", "\\", "%"), _FOLDERS),
    Finder(_find_after_tildes, ("~/",)),
    Finder(_find_in_listings, (ANY_DIGIT,), ("rw", "r-x", "r--")),
    Finder(_find_in_prompts, ("@:$", "@:#", "@]$", "@]#", "@%", "@$", NON_ASCII)),
    Finder(_find_in_output_of_id, ("=()",), ("uid=", "gid=")),
)
"""Find user names in home paths, listings and prompts."""
