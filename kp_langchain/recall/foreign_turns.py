"""Marks of a conversation within data: as if the system, the user or a tool spoke there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from ahocorasick_rs import AhoCorasick

from kp_langchain.recall.disguises import plain_words
from kp_langchain.recall.planted_rules import words_of_class

_MOST_MARKS = 500
_NEAR_CHARS = 240
_MODEL = "ai|llm|assistant|agent|chatbot|gpt|chatgpt|claude|copilot"
_SPEAKER = "system|user|human|assistant|developer|admin|administrator|operator"
_LABEL = rf"{_MODEL}|system|admin|override|hidden|directive|instruction|instructions|prompt"
_LABEL_WORDS = rf"(?:[\w']{{1,20}}[ _-]){{0,3}}(?:{_LABEL})(?:[ _-]\w{{1,20}}){{0,2}}\s?:?"

# What only a chat template writes.
_TEMPLATE = re.compile(
    r"<[|\uff5c]\s?/?(?:im_(?:start|end)|start_header_id|end_header_id|eot_id|begin_of_text"
    r"|end_of_text|system|user|assistant|eom_id|channel|message|endoftext|end|start)\b[^<>]{0,40}>?"
    r"(?:system|user|assistant|tool)?|<\uff5c[^<>]{1,30}>|<</?SYS>>|\[/?INST\]"
    r"|</?(?:start|end)_of_turn>",
    re.IGNORECASE,
)
_ORDER = "note|instruction|override|directive|command|message|alert|task|cmd|order|prompt"
# Tags and headings such as <system>, [AI NOTE], ---SYSTEM--- and SYSTEM OVERRIDE:, but no links.
_LABELLED = re.compile(
    rf"</?(?:{_SPEAKER}|information|important|important_instructions?|instructions?|system_prompt"
    r"|system_message|system_note|admin_note|tool_results?|tool_response|function_results?)>"
    rf"|\[\s?(?:{_LABEL_WORDS}|(?:{_SPEAKER})[^\]\n]{{0,30}})\](?!\()|<{_LABEL_WORDS}>"
    rf"|\{{\{{#?{_LABEL_WORDS}\}}\}}|-{{3,}}\s?{_LABEL_WORDS}\s?-{{3,}}"
    rf"|={{3,}}\s?{_LABEL_WORDS}\s?={{3,}}|\#{{3,}}\s?{_LABEL_WORDS}\s?\#{{3,}}"
    rf"|[\"']_{{0,2}}(?:{_MODEL}|system)_(?:{_ORDER})s?_{{0,2}}[\"']\s?:"
    r"|^\s{0,8}#{1,6}\s?(?:instruction|system|human|user)s?\s?:"
    rf"|^[ \t>*#/-]{{0,8}}(?:{_MODEL})[ _-](?:{_ORDER})s?\s?[:=]"
    rf"|\b(?:system|admin|administrator|developer)[ _-](?:{_ORDER}|notice|update|mode)s?\b"
    r"[^\n]{0,20}:|系统(?:提示|消息|指令|通知)?\s?[:\uff1a]"
    r"|システム(?:メッセージ|通知|指示)?\s?[:\uff1a]"
    r"|системное сообщение\s?:|systemnachricht\s?:|message système\s?:|mensaje del sistema\s?:",
    re.IGNORECASE | re.MULTILINE,
)
# A search for these is a hundred times as fast as the expressions, and most texts have none.
_TEMPLATE_HINTS = ("<|", "< |", "<\uff5c", "inst]", "sys>>", "_of_turn>")
_KEYWORDS = AhoCorasick(
    [
        *f"{_LABEL}|{_SPEAKER}|information|important|tool_re|function_re|系统|システム".split("|"),
        *("системное сообщение", "systemnachricht", "message système", "mensaje del sistema"),
    ]
)
_AROUND_CHARS = 100
# A call that the agent seems to make: whole lines of it, or the tags of a call.
_CALL = re.compile(
    r"^[ \t>]{0,8}Thought( \d+)?:.{0,400}\n{1,2}[ \t>]{0,8}Action( \d+)?:"
    r"|<tool_calls?>|<function_calls?>|<function=|<invoke name=|<tool_use>",
    re.IGNORECASE | re.MULTILINE,
)
_CALL_HINTS = ("action", "<tool_", "<function", "<invoke")
_TURN = re.compile(
    r"^[ \t>*#-]{0,8}(?:system|human|user)[*_]{0,2}\s?:", re.IGNORECASE | re.MULTILINE
)
_REPLY = re.compile(r"^[ \t>*#-]{0,8}(?:assistant|ai)[*_]{0,2}\s?:", re.IGNORECASE | re.MULTILINE)

_COMMANDS = ("act", "act on a file", "include", "only reply", "inform user", "disregard")
# Before an imperative; also the beginning of the text.
_BEFORE_COMMAND = re.compile(
    r"(?:^\W{0,3}|[.!?:;\u3002\uff01\uff1a\uff0c)\]'] ?|[\u4e00-\u9fff\u3040-\u30ff]"
    r"|\b(?:please|must|should|also|always|now|immediately|to|and|agents|you|will|then|actually) )$"
)


def foreign_turns(text: str, *, is_own: bool) -> Iterator[tuple[str, ...]]:
    """Yield the words by which a turn of another speaker in a text gives an instruction.

    Args:
        text: A text of a trace as it stands there.
        is_own: Whether the agent, or who gave it its task, wrote the text. Such text often has
            headings, and quotes conversations.
    """
    low = text.lower()
    if any(hint in low for hint in _TEMPLATE_HINTS):
        for match in islice(_TEMPLATE.finditer(text), _MOST_MARKS):
            if words := _command(_after(match)):
                yield words
                return
    if is_own:
        return
    if any(hint in low for hint in _CALL_HINTS) and (call := _CALL.search(text)):
        yield ("thought" if call.group().lower().lstrip(" \t>").startswith("t") else "call",)
        return
    same_length = low if len(low) == len(text) else text
    for match in islice(_labels(text, same_length), _MOST_MARKS):
        if words := _command(_after(match)):
            yield words
            return


def _labels(text: str, low: str) -> Iterator[re.Match[str]]:
    """Yield headings, then turns that a reply follows, around the words that they have."""
    windows: list[list[int]] = []
    for _, start, end in _KEYWORDS.find_matches_as_indexes(low):
        if _begins_word(low, start):
            if windows and start - _AROUND_CHARS <= windows[-1][1]:
                windows[-1][1] = end + _AROUND_CHARS
            else:
                windows.append([max(start - _AROUND_CHARS, 0), end + _AROUND_CHARS])
    for begin, end in windows:
        yield from _LABELLED.finditer(text, begin, end)
    for begin, end in windows:
        for match in _TURN.finditer(text, begin, end):
            if _REPLY.search(_after(match)):
                yield match


def _begins_word(text: str, start: int) -> bool:
    return not (text[max(start - 1, 0) : start].isalpha() and text[start].isascii())


def _after(match: re.Match[str]) -> str:
    return match.string[match.end() : match.end() + _NEAR_CHARS]


def _command(text: str) -> tuple[str, ...]:
    """Return the words of a command in a text; none if it has none."""
    text = plain_words(text)
    words = words_of_class(text)
    for name in _COMMANDS:
        for hit in words.get(name, ()):
            if _BEFORE_COMMAND.search(text, max(0, hit.start - 16), hit.start):
                return (hit.word,)
    if "you" in words and "must" in words:
        return (words["you"][0].word, words["must"][0].word)
    return ()
