"""Searching takes time and work in proportion to the length of a text."""

from __future__ import annotations

import json
import time

from kp_langchain.redaction import redact
from tests import programs
from tests.redaction.cases import NASTY

SHORT, LONG = 3000, 12_000
# Characters that are read for each of the text; more only if they do not grow with its length.
FEW_STEPS = 50
MOST_GROWTH = 2.0
CHARS = 20_000
MOST_CPU_S = 2.0  # the slowest takes a quarter of a second


def test_no_hostile_text_takes_long() -> None:
    slow = {}
    for name, make in NASTY[::3]:
        text = make(CHARS)
        began_s = time.process_time()
        redact(text)
        taken_s = time.process_time() - began_s
        if taken_s > MOST_CPU_S:
            slow[name] = taken_s
    assert slow == {}


# Cleans texts while each expression tells how many characters it reads.
_SPY = """
import json, re, sys
SHORT, LONG = {short}, {long}
SEARCHES = ("search", "finditer", "findall", "sub", "split")
compile, work = re.compile, [0]
def matches(found, position, end):
    for match in found:
        work[0] += match.end() - position
        position = match.end()
        yield match
    work[0] += end - position
class Spy:
    def __init__(self, pattern):
        self.pattern_ = pattern
    def __getattr__(self, name):
        method = getattr(self.pattern_, name)
        if name in SEARCHES:
            def search(*arguments):
                text = [argument for argument in arguments if isinstance(argument, str)][-1]
                first, *end = [argument for argument in arguments if isinstance(argument, int)] or [0]
                length = min(end[0] if end else len(text), len(text)) - first
                if name == "finditer":
                    return matches(method(*arguments), first, first + length)
                work[0] += length if name != "search" else 0
                return method(*arguments)
            return search
        if name in ("match", "fullmatch"):
            def match(*arguments):
                found = method(*arguments)
                work[0] += found.end() - found.start() if found else 1
                return found
            return match
        return method
def spy(expression, flags=0):
    pattern = compile(expression, flags)
    is_ours = "/redaction/" in sys._getframe(1).f_code.co_filename.replace(chr(92), "/")
    return Spy(pattern) if is_ours else pattern
re.compile = spy
read_json = json.JSONDecoder.raw_decode
def read(decoder, text, at=0):
    end = at
    try:
        content, end = read_json(decoder, text, at)
    except json.JSONDecodeError as error:
        end = len(text) if error.msg.startswith("Unterminated") else error.pos
        raise
    finally:
        work[0] += end - at
    return content, end
json.JSONDecoder.raw_decode = read
from kp_langchain.redaction import redact
"""
_LIST_WORK = """
from tests.redaction.cases import NASTY
counts = {}
for name, make in NASTY:
    if "and a blank" not in name and "of them" not in name:
        counts[name] = []
        for length in (SHORT, LONG):
            work[0] = 0
            redact(make(length))
            counts[name].append(work[0] / length)
print(json.dumps(counts))
"""


def test_no_character_is_read_again_and_again() -> None:
    # In a program of its own, in which nothing of the package is compiled yet.
    spy = _SPY.format(short=SHORT, long=LONG)
    done = programs.run("-c", spy + _LIST_WORK, cwd=programs.ROOT)
    assert done.returncode == 0, done.stderr
    slow = {
        name: (short, long)
        for name, (short, long) in json.loads(done.stdout).items()
        if long > FEW_STEPS and long > MOST_GROWTH * short
    }
    assert slow == {}
