"""Embedding models: what turns a text into the vector that novelty is measured with."""
