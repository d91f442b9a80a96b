"""How much is read of a question and of its answer; in a module that loads no finder."""

from typing import Final

ASKED_CHARS: Final = 600
"""How much of the end of a text is read as a question."""
ANSWER_CHARS: Final = 400
"""A longer text is no answer that gives a secret."""
