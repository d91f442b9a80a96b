"""Secrets on command lines: the flag or argument that takes each command's password."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kp_langchain.redaction.finders import Find, Finder
from kp_langchain.redaction.spans import Span, cached_pattern
from kp_langchain.redaction.values import is_placeholder

_ARGUMENT = r"(\\*[\"'])?(?P<secret>(?(1)[^\"'\n\\]{1,256}|[^\s\"'\\]{1,256}))"
_WORD = r"(?:\\*[\"'])?(?P<secret>[^\s\"'\\]{1,256})"
_ARGS = r"(?:[^\n|;]{0,200}?[ \t])?"  # the other arguments

# A literal that the text must contain, the command as an expression, its flag for a password, and
# whether the value may follow the flag without a space.
_FLAGS: Final = (
    ("redis-cli", "redis-cli", "-a", False),
    ("sshpass", "sshpass", "-p", True),
    ("sqlcmd", "sqlcmd", "-P", True),
    ("bcp", "bcp", "-P", True),
    ("mongo", "mongo(?:sh|dump|export|import|restore|files)?", "-p", True),
    ("cqlsh", "cqlsh", "-p", False),
    ("docker", "docker[^\n|;]{0,80}? login", "-p", False),
    ("podman", "podman[^\n|;]{0,80}? login", "-p", False),
    ("helm", "helm[^\n|;]{0,80}? login", "-p", False),
    ("az ", "az (?:login|acr login|ad)", "-p", False),
    ("oc login", "oc login", "-p", False),
    ("cf login", "cf login", "-p", False),
    ("ldap", "ldap(?:search|add|modify|delete|passwd|whoami|compare)", "-w", True),
    ("ipmitool", "ipmitool", "-P", False),
    ("zip", "(?:un)?zip", "-P", True),
    ("7z", "7za?[ \t]+[a-z]+", "-p", True),
    ("rar ", "(?:un)?rar[ \t]+[a-z]+", "-h?p", True),
    ("openssl", "openssl", "-(?:k|K|passwd)", False),
    ("snmp", "snmp(?:walk|get|set|bulkwalk)", "-[AXc]", False),
    ("useradd", "useradd", "-p", False),
    ("usermod", "usermod", "-p", False),
    ("mosquitto", "mosquitto_(?:pub|sub)", "-P", False),
    ("ssh-keygen", "ssh-keygen", "-[NP]", False),
    ("evil-winrm", "evil-winrm", "-p", False),
    ("twine", "twine", "-p", False),
    ("svn", "svn", "--password", False),
    ("vncviewer", "vncviewer", "-passwd", False),
)

# The symbols and the literal that the text must contain, and the expression with its group "secret".
_PLACES: Final = (
    (
        "-",
        "mysql",
        r"mysql(?:dump|admin|import|show|sh)?[ \t](?:[^\n|;]{0,200}?[ \t])?-p(?=[^\s\-])" + _ARGUMENT,
    ),
    (
        "-",
        "curl",
        r"curl[ \t](?:[^\n|;]{0,200}?[ \t])?-(?:u|-user|U|-proxy-user)[ \t=]{0,8}(?:\\*[\"'])?"
        r"[^\s:\"'\\]{1,80}:(?P<secret>[^\s\"'\\]{1,256})",
    ),
    ("-", " -a", rf"\bhttps?[ \t]{_ARGS}-(?:a|-auth)[ \t=]{{1,4}}(?:\\*[\"'])?[^\s:\"'\\]{{1,80}}:(?P<secret>[^\s\"'\\]{{1,256}})"),
    ("-", "etcdctl", rf"etcdctl[ \t]{_ARGS}--user[ \t=]{{1,4}}[^\s:]{{1,80}}:" + _WORD),
    ("-", "pass:", r"-pass(?:in|out)?[ \t]{1,4}(?:\\*[\"'])?pass:(?P<secret>[^\s\"'\\]{1,256})"),
    ("-", "lftp", r"lftp[^\n|;]{0,120}?[ \t]-u[ \t]{0,4}(?:\\*[\"'])?[^\s,\"']{1,80}," + _WORD),
    ("-", " -u", r"(?:smbclient|rpcclient|smbmap|wmic?|winexe|net)[ \t][^\n|;]{0,120}?-U[ \t]{0,4}(?:\\*[\"'])?[^\s%\"']{1,80}%" + _WORD),
    ("/", "sqlplus", r"sqlplus[ \t](?:-\w+[ \t]){0,4}(?:\\*[\"'])?[^\s/\"'\\@]{1,80}/(?P<secret>[^\s\"'\\]{1,200}?)(?=@[\w/.:\-]{1,120}|[\s\"']|$)"),
    ("", "rabbitmqctl", r"rabbitmqctl[ \t](?:[^\n|;]{0,80}?[ \t])?(?:add_user|change_password|authenticate_user)[ \t]{1,4}[^\s]{1,80}[ \t]{1,4}" + _ARGUMENT),
    ("-", "htpasswd", r"htpasswd[ \t](?:-\w{1,8}[ \t]{1,4}){0,4}?-\w{0,6}b\w{0,6}[ \t](?:-\w{1,8}[ \t]{1,4}){0,4}[^\s]{1,120}[ \t]{1,4}[^\s]{1,80}[ \t]{1,4}" + _ARGUMENT),
    ("", "net user", r"net user[ \t]{1,4}(?!/)[^\s]{1,80}[ \t]{1,4}(?![/*])" + _ARGUMENT),
    ("/", "net use", r"net use[ \t][^\n|;]{0,160}?/user:[^\s]{1,80}[ \t]{1,4}(?![/*])" + _ARGUMENT),
    ("|", "echo", r"(?:echo|printf)[ \t]{1,4}(?:-\w[ \t]{1,4})?" + _ARGUMENT + r"(?(1)\\*[\"'])[ \t]{0,4}\|[ \t]{0,4}(?:sudo[ \t](?:-\w{1,8}[ \t]){0,4}?-\w{0,4}S|[^\n|;]{0,200}--password-stdin|passwd\b|cryptsetup\b|gpg\b)"),
    ("|", "chpasswd", r"(?:echo|printf)[ \t]{1,4}(?:-\w[ \t]{1,4})?(?:\\*[\"'])?[^\s:\"']{1,64}:(?P<secret>[^\s\"'\\]{1,200})(?:\\*[\"'])?[ \t]{0,4}\|[ \t]{0,4}(?:sudo[ \t])?chpasswd"),
    ("-", "secret set", r"secret set[ \t][^\n|;]{0,160}?(?:--body|-b)[ \t=]{1,4}" + _ARGUMENT),
    ("-", "securestring", r"ConvertTo-SecureString[ \t](?:-String[ \t]{1,4})?(?:-\w+[ \t]){0,4}" + _ARGUMENT),
    ("", "configure set", r"configure set[ \t]{1,4}(?:aws_secret_access_key|aws_session_token|[\w.\-]{0,64}(?:token|password|secret|api_key))[ \t]{1,4}" + _ARGUMENT),
    ("", "config set", r"config set[ \t]{1,4}(?:--\w+[ \t]{1,4}){0,3}[^\s]{0,120}(?:[Tt]oken|[Pp]assword|[Ss]ecret|[Kk]ey)[ \t]{1,4}" + _ARGUMENT),
    ("", "login", r"\b(?:gh auth|npm|hf|huggingface-cli|wandb|vault|snyk auth|doppler|heroku|fly|vercel)[ \t](?:auth[ \t])?login[ \t](?:-{1,2}[\w\-]{1,24}[ \t=]){0,3}(?P<secret>[A-Za-z0-9_.\-]{20,})"),
)  # fmt: skip

_BY_FLAG = tuple(
    (
        literal,
        (
            rf"(?<![\w\-.])(?:[\w.\-]{{0,40}}/){{0,6}}{command}(?:\.exe)?[ \t]{_ARGS}{flag}"
            + (r"[ \t]{0,8}(?!-)" if may_be_attached else r"[ \t]{1,8}(?!-)")
            + _ARGUMENT
        ),
    )
    for literal, command, flag, may_be_attached in _FLAGS
)
# Every command of the first table contains one of these.
_ANY_FLAG = re.compile(" -(?:-?h?p|a|w|k|x|c|n)")


def _find_by_flag(text: str, low: str) -> Iterator[Span]:
    if _ANY_FLAG.search(low):
        yield from _find_in_table(text, low, _BY_FLAG, 0)


def _find_by_place(symbols: str) -> Find:
    table = [
        (literal, expression)
        for row_symbols, literal, expression in _PLACES
        if row_symbols == symbols
    ]
    return lambda text, low: _find_in_table(text, low, table, re.IGNORECASE)


def _find_in_table(
    text: str, low: str, table: Iterable[tuple[str, str]], flags: int
) -> Iterator[Span]:
    for literal, expression in table:
        if literal in low:
            for match in cached_pattern(expression, flags).finditer(text):
                if not is_placeholder(match["secret"]):
                    yield Span(*match.span("secret"), "password")


FINDERS = (
    Finder(_find_by_flag, ("-",)),
    *(
        Finder(_find_by_place(symbols), (symbols,))
        for symbols in dict.fromkeys(symbols for symbols, _, _ in _PLACES)
    ),
)
