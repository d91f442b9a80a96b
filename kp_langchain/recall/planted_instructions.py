"""Whether a trace holds instructions to the model, where data should be.

Tools return what others wrote: pages, mails, files, records. If such a text addresses the model
(before you solve the task, send this there), whoever is shown the run is shown the instruction. A
memory is poisoned in the same way: an ordinary-looking question plants a rule (the data of A is
kept under B, always use B), or a document plants an experience that skips the checks. A trace with
such text is not to be recalled.

Words of several classes close together make a finding, in English, German, French, Spanish,
Portuguese, Italian, Chinese, Japanese and Russian; the plainest sort (ignore the previous
instructions) also in Dutch, Polish, Swedish, Ukrainian, Turkish, Korean, Arabic and Hindi. So do
marks of a conversation with a command after them. Texts are also read without accents and invisible
characters, with look-alike letters as what they look like, decoded from base64, hexadecimal and
percent encoding, and in comments of HTML and Markdown.

What it cannot see:

- A bare request that does not address the model (please send the report to X). It reads like any
  mail; nothing in its words says that it was not meant for the user.
- A false fact, such as a wrong account number or price, or an instruction that follows from facts
  (the office has moved; refunds now go to Y).
- Other languages, other ciphers (rot13, reversed letters), encodings within encodings, text in
  pictures, words with signs in place of blanks, and words that are spread over several outputs.
- What the agent itself wrote in its thoughts and its answer, unless it is an override or meant for
  later runs: it says there what it must do, and tells the user what to do.
- What is not in the trace: the middle of a long output, which recording left out, and what
  redaction replaced. Of a text of more than 80,000 characters, and of a trace of more than 400,000,
  both ends are read.
- Whether the run obeyed. A run that refused is found as well. (That a value of a call stood in an
  imperative sentence of an output says little: of the recorded runs that were not attacked, 5 % do
  what a page told them because the user wanted just that.)

Whoever knows the words can avoid them, so a trace without a finding is not proven clean: foreign
traces are recalled only when somebody has admitted them. Text about such attacks that quotes them
is found, too, and so are prompts that tools return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kp_langchain.recall.disguises import INVISIBLE_TEXT, readings
from kp_langchain.recall.foreign_turns import foreign_turns
from kp_langchain.recall.planted_rules import matching_rules
from kp_langchain.recall.quoting import both_ends
from kp_langchain.values import members, plain

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

SCAN_VERSION = 1
"""Of the words, the rules and how texts are read: raised with any of them in a release.

What an earlier version made of a kept trace is then made anew. Whatever is about to be shown is
searched by the rules of now in any case.
"""

Part = Literal["task", "thought", "input", "output", "answer"]

_TRACE_CHARS = 400_000
_FEWEST_CHARS = 400  # of a passage in a trace with too many of them
_INPUT_CHARS = 80_000
_MOST_FINDINGS = 50


@dataclass(frozen=True, slots=True)
class PlantedInstruction:
    """A place in a trace whose text reads like an instruction to the model.

    Attributes:
        step_id: The step that holds it; None for the task and the answer.
        part: `task`, `thought`, `input`, `output` (of a tool; also an error) or `answer`.
        kind: `override` (ignore the previous instructions), `before the task`, `addressed to the
            model`, `turn of another speaker` (marks of a conversation within data), `instead of
            the task`, `kept from the user`, `for later runs`, `sends data away` or `hidden`.
        words: The words that make it one. They are from the tables of this package; no other text
            of the trace is in it.
        disguise: How the text was disguised, such as `encoded`; empty if it was not.
    """

    step_id: int | None
    part: Part
    kind: str
    words: tuple[str, ...]
    disguise: str = ""


def find_planted(trace: ReasoningTrace, *, is_foreign: bool = False) -> list[PlantedInstruction]:
    """Return where a trace holds text that reads like an instruction to the model.

    Args:
        trace: The trace. It may lack anything, even what its class demands.
        is_foreign: Whether it comes from a registry, so that task, thoughts and answer are no more
            the user's and the agent's own words than what tools returned.
    """
    findings: dict[PlantedInstruction, None] = {}
    passages = list(_passages(trace))
    if sum(len(passage.text) for passage in passages) > _TRACE_CHARS:
        most = _TRACE_CHARS // _FEWEST_CHARS
        if len(passages) > most:
            passages = passages[: most // 2] + passages[-most // 2 :]
        limit_chars = _TRACE_CHARS // len(passages)
        passages = [one._replace(text=both_ends(one.text, limit_chars)) for one in passages]
    for passage in passages:
        findings.update(dict.fromkeys(_findings(passage, is_foreign=is_foreign)))
        if len(findings) >= _MOST_FINDINGS:
            break
    return list(findings)


class _Passage(NamedTuple):
    """A text of a trace.

    Attributes:
        step_id: The step that holds it, if one does.
        part: What it is.
        text: The text, not empty.
    """

    step_id: int | None
    part: Part
    text: str


def _findings(passage: _Passage, *, is_foreign: bool) -> Iterator[PlantedInstruction]:
    step_id, part, text = passage
    is_own = part != "output"
    # What is said to the model in the input of a tool is copied from elsewhere.
    ways_to_read = {is_own, False} if is_foreign or part == "input" else {is_own}
    for reading in readings(text):
        disguise = reading.disguise
        if disguise == INVISIBLE_TEXT:
            yield PlantedInstruction(step_id, part, "hidden", (), disguise)
        for as_own in sorted(ways_to_read):
            matches = matching_rules(reading.words, is_own=as_own, is_hidden=reading.is_hidden)
            for kind, words in matches:
                yield PlantedInstruction(step_id, part, kind, words, disguise)
            for words in foreign_turns(reading.text, is_own=as_own or (is_own and not is_foreign)):
                yield PlantedInstruction(step_id, part, "turn of another speaker", words, disguise)


def _passages(trace: ReasoningTrace) -> Iterator[_Passage]:
    task = getattr(getattr(trace, "task", None), "objective", None)
    yield from _texts(None, "task", task)
    steps = getattr(trace, "steps", None)
    for step in steps if isinstance(steps, list) else []:
        number = getattr(step, "step_id", None)
        step_id = number if isinstance(number, int) else None
        part: Part = "thought" if getattr(step, "type", None) == "thought" else "output"
        yield from _texts(step_id, part, getattr(step, "content", None))
        yield from _texts(step_id, part, getattr(step, "output_summary", None))
        yield from _texts(step_id, "input", getattr(step, "input", None))
    answer = getattr(getattr(trace, "outcome", None), "result_summary", None)
    yield from _texts(None, "answer", answer)


def _texts(step_id: int | None, part: Part, value: Any) -> Iterator[_Passage]:
    """Yield the text of a value, or of all texts within a structure, as one passage."""
    if not isinstance(value, str):
        value = "\n".join(_leaves(value)) if isinstance(value, dict | list) else ""
    if value:
        yield _Passage(step_id, part, value)


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts in a structure, keys included."""
    for name, item in members(plain(value, _INPUT_CHARS)):
        yield from (text for text in (name, item) if isinstance(text, str))
