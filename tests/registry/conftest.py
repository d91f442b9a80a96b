from __future__ import annotations

from tests.store.conftest import new_postgres_url, postgres, url

__all__ = ["new_postgres_url", "postgres", "url"]
