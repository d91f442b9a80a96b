"""Words of agents that fail, doubt, refuse or are done: English, and some in four more languages."""

from __future__ import annotations

import re

# Scripts written without spaces count by the character.
WORD = re.compile(r"[぀-ヿ㐀-鿿가-힣]|[^\W_]+")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
FAILED = re.compile(
    r"\b(?:error|errors|exception|traceback|failed|failure|invalid|denied|unable|cannot|"
    r"could not|couldn't|not found|no results?|no such|not exist|does not|timed? ?out|"
    r"no encontrad[oa]|inválid[oa])\b|错误|失败|未找到|エラー|失敗|見つかりません|오류|실패|찾을 수 없",
    re.IGNORECASE,
)
UNABLE = re.compile(
    r"\b(?:sorry|apologi[sz]e|apologies|unfortunately|unable|cannot|can't|can not|couldn't|"
    r"could not|not able|don't have|do not have|not possible|lo siento|no puedo|no pude|"
    r"lamentablemente)\b|抱歉|无法|不能|申し訳|できません|残念|죄송|할 수 없|유감",
    re.IGNORECASE,
)
UNSURE = re.compile(
    r"\b(?:may|might|maybe|perhaps|possibly|probably|likely|seems?|appears?|assum\w+|guess|"
    r"unclear|not sure|uncertain|could be|approximately|quizás?|tal vez|probablemente|parece)\b|"
    r"可能|也许|大概|かもしれ|おそらく|たぶん|아마|것 같",
    re.IGNORECASE,
)
DONE = re.compile(
    r"\b(?:successfully|success|done|completed?|finished|created|updated|sent|booked|scheduled|"
    r"added|cancell?ed|changed|confirmed|listo|completad[oa]|hecho)\b|"
    r"成功|完成|已经|完了|しました|완료|했습니다",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"\b(?:no|not|none|never|nothing|n't|without|ningun[oa]?|nunca|sin)\b|n't\b|不|没|無|ない|ません|없|않",
    re.IGNORECASE,
)
QUESTION = re.compile("[?？]")
EXCLAMATION = re.compile("[!！]")
