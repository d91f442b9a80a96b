"""Programs in processes of their own, without the seconds that a new interpreter needs for imports.

One interpreter imports what others wrote (LangChain, LangGraph, SQLAlchemy, NumPy, nothing of
kp_langchain), and forks a child for each program. The child imports kp_langchain itself, sees
the environment, folder and streams that it is given, and ends as a program does: threads, exit
hooks, exit status. `python -m tests.programs` is that interpreter; tests call `run` and `start`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "asyncio", "multiprocessing", "sqlite3", "numpy", "pydantic", "pydantic_settings", "sqlalchemy",
    "sqlalchemy.dialects.sqlite", "typer", "rich", "rich.table", "httpx", "platformdirs",
    "langchain_core.callbacks", "langchain_core.tools", "langchain_core.runnables",
    "langchain_core.language_models", "langchain_core.prompts", "langgraph.graph",
    "langgraph.prebuilt", "langgraph.checkpoint.memory", "langchain.agents",
    "langchain.agents.middleware",
)  # fmt: skip
_ENOUGH_S = 600.0


class Done(NamedTuple):
    """What a program that has ended leaves.

    Args:
        returncode: Its exit status; negative for the signal that ended it.
        stdout: What it printed.
        stderr: What it and its log said beside that.
    """

    returncode: int
    stdout: str
    stderr: str


class Program:
    """A program that runs, as far as tests need `subprocess.Popen` of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int.from_bytes(connection.recv(4), "big")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._status(0.0)

    def wait(self, timeout_s: float = _ENOUGH_S) -> int:
        """Wait for its end and return the exit status.

        Raises:
            TimeoutExpired: It still runs.
        """
        status = self._status(timeout_s)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and nobody told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self.returncode = int(self._connection.recv(16))
                self._connection.close()
        return self.returncode


def run(
    *words: str, stdin: str = "", timeout_s: float = _ENOUGH_S, cwd: Path | None = None,
    **environment: str,
) -> Done:  # fmt: skip
    """Run a program to its end.

    Args:
        words: As after `python`: `-c CODE` or `-m MODULE`, and arguments.
        stdin: What it reads.
        timeout_s: After so many seconds it is killed; for deadlocks alone.
        cwd: Its working folder; by default this process's.
        environment: Added to that of this process.
    """
    with (
        tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):  # fmt: skip
        given.write(stdin.encode())
        given.seek(0)
        program = start(*words, stdin=given, stdout=out, stderr=err, cwd=cwd, **environment)
        try:
            status = program.wait(timeout_s)
        finally:
            program.kill()
        texts = (_content(stream) for stream in (out, err))
        return Done(status, *texts)


def run_cold(
    *words: str, stdin: str = "", timeout_s: float = _ENOUGH_S, cwd: Path | None = None,
    **environment: str,
) -> Done:  # fmt: skip
    """Run a program in an interpreter that imported nothing yet; otherwise as `run` does."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, input=stdin, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, timeout=timeout_s, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def _content(stream: BinaryIO) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def start(
    *words: str, stdin: Any = None, stdout: Any, stderr: Any, cwd: Path | None = None,
    environment: Mapping[str, str] | None = None, **more: str,
) -> Program:  # fmt: skip
    """Start a program, in a session of its own.

    Args:
        words: As after `python`: `-c CODE` or `-m MODULE`, and arguments.
        stdin: A file that it reads; nothing by default.
        stdout: A file that it prints to.
        stderr: The same for its errors.
        cwd: Its working folder; by default this process's.
        environment: By default that of this process.
        more: Added to it.
    """
    request = {
        "words": words,
        "cwd": str(cwd or Path.cwd()),
        "environment": {**(os.environ if environment is None else environment), **more},
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    with Path(os.devnull).open("rb") as nothing:
        body = json.dumps(request).encode()
        streams = [(stdin or nothing).fileno(), stdout.fileno(), stderr.fileno()]
        socket.send_fds(connection, [len(body).to_bytes(4, "big")], streams)
        connection.sendall(body)
    return Program(connection)


_servers: dict[int, str] = {}  # by the process that started it
_starting = threading.Lock()


def _server() -> str:
    """Return the address of this process's interpreter that forks, started once."""
    with _starting:
        return _started_server()


def _started_server() -> str:
    address = _servers.get(os.getpid())
    if address is None:
        folder = tempfile.mkdtemp(prefix="kp-programs-")
        address = _servers[os.getpid()] = f"{folder}/socket"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs", address],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(process.terminate)
        until = time.monotonic() + _ENOUGH_S
        while not Path(address).exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no interpreter for programs: status {process.poll()}")
            time.sleep(0.01)
    return address


# ------------------------------------------------------------------ the interpreter that forks


def serve(address: str) -> dict[str, Any]:
    """Fork a child for each request, until SIGTERM; return the request in the child."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a child's collections leave alone, and so do not copy, what was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for programs

    def end(*_: object) -> None:
        shutil.rmtree(Path(address).parent, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen(64)
        Path(f"{address}.new").rename(address)
        while True:
            if 0 in select.select([listening, 0], [], [])[0]:  # who started this one has ended
                end()
            connection, _ = listening.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size, body = int.from_bytes(head, "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    child = os.fork()
    if child:
        connection.sendall(child.to_bytes(4, "big"))
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request: dict[str, Any] = json.loads(body)
    return request


def become(request: Mapping[str, Any]) -> None:
    """Be the program that was asked for, as if this interpreter had just started."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ |= request["environment"]
    time.tzset()
    os.chdir(request["cwd"])
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, size = ("rb", -1) if number == 0 else ("wb", 0 if is_unbuffered else -1)
        raw = open(number, mode, size, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw,
            encoding=os.environ.get("PYTHONIOENCODING", "utf-8"),
            line_buffering=name == "stderr" or raw.isatty(),
            errors="backslashreplace" if name == "stderr" else "strict",
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    words: Sequence[str] = request["words"]
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["cwd"], *filter(None, more)]
    sys.argv[:] = [words[0], *words[2:]]
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        exec(compile(words[1], "<string>", "exec"), main.__dict__)  # noqa: S102


if __name__ == "__main__":
    become(serve(sys.argv[1]))
