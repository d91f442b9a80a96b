"""Embedding: models that turn a text into the vector that novelty is measured with."""
