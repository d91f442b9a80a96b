"""A private key whose beginning was cut away: what is left of it is removed, and nothing else."""

from __future__ import annotations

import base64
import random

import pytest

from kp_langchain import trace_from_messages
from kp_langchain.redaction import redact

BODY = base64.b64encode(random.Random(1).randbytes(2300)).decode()
LINES = [BODY[at : at + 64] for at in range(0, len(BODY), 64)]


def key(separator: str, kind: str = "RSA PRIVATE KEY") -> str:
    return separator.join([f"-----BEGIN {kind}-----", *LINES, f"-----END {kind}-----"])


@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
@pytest.mark.parametrize("separator", ["\n", "\r\n", "\\n", "\n    "])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.51, 0.9, 0.97])
def test_the_rest_of_a_key_is_removed(separator: str, kind: str, share: float) -> None:
    whole = key(separator, kind)
    cut = whole[int(len(whole) * share) :]
    for before in ("", "of it: ", "... [7 characters left out] ..."):
        redacted = redact(f"{before}{cut} and so on").value
        assert "".join(redacted.split()) == "".join(
            f"{before}[REDACTED:private_key]andsoon".split()
        )


def test_words_before_an_end_without_a_key_stay() -> None:
    text = "the file has no line before\n-----END PRIVATE KEY-----\nand a word after"
    assert redact(text).value.startswith("the file has no line ")
    assert redact(text).value.endswith("\nand a word after")


@pytest.mark.parametrize("before", range(0, 9000, 450))
def test_no_piece_of_a_key_is_left_where_a_text_is_cut(before: int) -> None:
    words = "word " * 2000
    text = words[:before] + key("\n") + words[: 9000 - before]
    written = trace_from_messages([("user", text), ("ai", text)]).model_dump_json()
    assert not [line for line in LINES if line[:20] in written or line[-20:] in written]
