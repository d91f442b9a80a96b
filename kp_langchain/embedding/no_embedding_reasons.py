"""Why a text has no embedding: values of `Embedding.problem` and of a score's `novelty_source`."""

from __future__ import annotations

NO_EMBEDDER = "no embedder"
NOT_INSTALLED = "embeddings extra not installed"
STILL_LOADING = "embedding model still loading"
UNREADABLE = "unreadable"
EMBEDDER_FAILED = "embedder failed"  # followed by a colon and the type of the error
