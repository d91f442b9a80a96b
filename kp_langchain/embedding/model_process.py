"""Runs a local model in a process of its own.

Importing the packages that run a model takes up to seconds, in which other threads stall: libraries
are linked while Python runs nothing else, and torch adds a third of a million objects, which make
every full garbage collection long, then and later. Some packages also register fork handlers, and
print errors if a fork comes while they are imported. A model in a process of its own stalls no
thread of the host, and neither forks nor the host's exit wait for it.

Host and model exchange messages over pipes, one JSON line a message; the bytes of vectors follow
their line. The model's process ends when its standard input closes, so it does not outlive the
host. `multiprocessing.connection` does not fit: its writes have no time-out, and the reader may be
frozen; on Windows it needs named pipes.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain import errors
from kp_langchain._forksafe import fork_gate, leave_in_child
from kp_langchain.embedding.loaded_model import LoadedModel, Loader
from kp_langchain.errors import EmbedderError, KPError, ModelProcessEndedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A process that does not answer for this long is frozen: a text takes milliseconds.
_SILENCE_S = 30
_SILENCE_PER_TEXT_S = 1
_READ_BYTES = 1 << 16

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"


def load(loader: Loader, name: str | None, on_warning: Callable[[str], None]) -> LoadedModel | None:
    """Load a model in a process of its own.

    Args:
        loader: The function that loads it there; a function of a module.
        name: Name or path of the model; None for the default model.
        on_warning: Called with each line that is logged there, such as that a download begins.

    Returns:
        The model; None if no process can be started for it, or the process ended while loading.

    Raises:
        MissingExtraError: No package that runs the model is installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
        EmbedderError: Loading failed in another way.
    """
    executable = _python()
    if executable is None:
        return None
    try:
        return _ModelProcess(executable, loader, name, on_warning).wait_until_loaded()
    except ModelProcessEndedError:  # the system may deny a process, or the memory for one
        return None


def _python() -> str | None:
    """Return the interpreter to start; None if there is none, as in a frozen program."""
    executable = get_executable()
    path = os.fsdecode(executable or "")
    is_python = Path(path).name.lower().startswith(("python", "pypy"))
    return path if is_python and not getattr(sys, "frozen", False) else None


class _ModelProcess:
    """The model's process, as the host sees it. One request at a time.

    A forked child closes its copies of the pipes: the process answers only the one that started it.

    Raises:
        ModelProcessEndedError: The process cannot be started.
    """

    def __init__(
        self,
        executable: str,
        loader: Loader,
        name: str | None,
        on_warning: Callable[[str], None],
    ) -> None:
        self._on_warning = on_warning
        program = _PROGRAM.format(path=sys.path, module=__name__)
        arguments = json.dumps(
            {
                "loader": [loader.__module__, loader.__name__],
                "model": name,
                "barred": [name for name, module in sys.modules.items() if module is None],
            }
        )
        with fork_gate:  # a forked child must not inherit pipes that it does not know of
            theirs_in, self._requests = os.pipe()
            if os.name == "posix":
                os.set_blocking(self._requests, False)  # the reader may be frozen
            answers, theirs_out = os.pipe()
            self._answers = answers
            self._received = bytearray()
            self._pid: int | None = None
            self._silence_s: int | None = None  # no limit for the load: it may download
            self._close = weakref.finalize(self, _close, self._requests, self._answers)
            self._close.atexit = False  # runs that end with this process are scored at exit
            leave_in_child(self)
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our program
                    [executable, *_flags(), "-c", program, arguments],
                    stdin=theirs_in,
                    stdout=theirs_out,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C at a terminal must not reach it
                )
            except OSError as error:
                self._close()
                raise ModelProcessEndedError(f"no process for the model: {error}") from error
            finally:
                os.close(theirs_in)
                os.close(theirs_out)

    @property
    def has_ended(self) -> bool:
        return not self._close.alive

    def wait_until_loaded(self) -> LoadedModel:
        """Wait for the model, and return it.

        Raises:
            MissingExtraError: No package that runs the model is installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The process has ended.
            EmbedderError: Loading failed in another way.
        """
        with fork_gate.opened():
            if os.name == "posix":
                self._process.wait()  # it moves to the background at once: see `serve`
            answer = self._answer()
        self._pid = answer["pid"]
        return LoadedModel(
            self._embed,
            self._unreadable_share if answer["has_unreadable_share"] else None,
            answer["name"],
            answer["backend"],
            Path(answer["folder"]),
            lambda: self.has_ended,
        )

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        with fork_gate.opened():
            answer = self._request(len(texts), embed=texts)
        return np.frombuffer(answer["bytes"], dtype=np.float32).reshape(answer["shape"])

    def _unreadable_share(self, text: str) -> float:
        with fork_gate.opened():
            share: float = self._request(1, unreadable_share=text)["share"]
        return share

    def _request(self, texts: int, **request: object) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        self._silence_s = _SILENCE_S + _SILENCE_PER_TEXT_S * texts
        try:
            rest = memoryview(line)
            while rest:
                self._wait_for(self._requests, selectors.EVENT_WRITE)
                rest = rest[os.write(self._requests, rest) :]
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise _ended_error() from error
            raise
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._read()
            while "log" in answer:
                self._on_warning(answer["log"])
                answer = self._read()
        except BaseException as error:
            self._close()  # a late answer would be read as the answer to the next request
            if isinstance(error, OSError | ValueError | EOFError):
                raise _ended_error() from error
            raise
        if "error" in answer:
            raise getattr(errors, answer["error"], EmbedderError)(answer["message"])
        return answer

    def _read(self) -> dict[str, Any]:
        while (end := self._received.find(b"\n") + 1) == 0:
            self._receive()
        answer: dict[str, Any] = json.loads(self._take(end))
        if "bytes" in answer:
            answer["bytes"] = self._take(answer["bytes"])
        return answer

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def _receive(self) -> None:
        self._wait_for(self._answers, selectors.EVENT_READ)
        data = os.read(self._answers, _READ_BYTES)
        if not data:
            raise EOFError
        self._received += data

    def _wait_for(self, pipe: int, event: int) -> None:
        """Wait until a pipe can be read or written.

        Raises:
            ModelProcessEndedError: The process did not answer in time, and was killed.
        """
        if self._silence_s is None or os.name != "posix":  # Windows cannot wait for pipes
            return
        with selectors.PollSelector() as selector:  # other kinds own a descriptor that forks copy
            selector.register(pipe, event)
            # By seconds rather than by the clock, which runs on while both processes are frozen.
            for _ in range(self._silence_s):
                if selector.select(1.0):
                    return
        if self._pid is not None:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)  # frozen, it would hold its memory for ever
        raise ModelProcessEndedError(
            f"the process that runs the embedding model has not answered for {self._silence_s} s"
        )

    def leave_to_parent(self) -> None:
        """Close the host's ends of the pipes, in a forked child."""
        self._close()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _ended_error() -> ModelProcessEndedError:
    return ModelProcessEndedError("the process that runs the embedding model has ended")


def _flags() -> list[str]:
    """Return the options that exclude the same import paths as here, and the working folder."""
    options = {"ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
    return ["-P", *(option for name, option in options.items() if getattr(sys.flags, name))]


def serve() -> None:
    """Run the model's process: load the model that the last argument names, then answer."""
    if hasattr(os, "fork") and os.fork():
        os._exit(0)  # detached: a host may wait for all of its children, or count them
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the host may need the model after these
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(os.dup(0), requests), daemon=True).start()
    answers = _Answers(os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # output that packages print must not mix with the answers
        os.dup2(null, descriptor)
    log = logging.getLogger("kp_langchain")
    log.addHandler(answers)
    log.propagate = False
    arguments = json.loads(sys.argv[-1])
    sys.modules.update(dict.fromkeys(arguments["barred"]))  # modules that the host blocks
    try:
        module, function = arguments["loader"]
        model: LoadedModel = getattr(importlib.import_module(module), function)(arguments["model"])
    except Exception as error:  # noqa: BLE001 - sent to the host
        answers.fail(error)
        os._exit(0)
    answers.send(
        name=model.name,
        backend=model.backend,
        folder=str(model.folder),
        has_unreadable_share=model.unreadable_share is not None,
        pid=os.getpid(),
    )
    while True:
        request = requests.get()
        try:
            if "embed" in request:
                answers.send_vectors(model.encode(request["embed"]))
            elif model.unreadable_share is not None:
                answers.send(share=model.unreadable_share(request["unreadable_share"]))
        except Exception as error:  # noqa: BLE001 - sent to the host
            answers.fail(error)


def _read(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(0)


class _Answers(logging.Handler):
    """Writes answers, and the warnings that are logged while the model works."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self._file = os.fdopen(descriptor, "wb")

    def send(self, **answer: object) -> None:
        self._write(answer)

    def send_vectors(self, vectors: object) -> None:
        import numpy as np

        array = np.ascontiguousarray(vectors, dtype=np.float32)
        self._write({"shape": array.shape, "bytes": array.nbytes}, array.tobytes())

    def fail(self, error: Exception) -> None:
        """Send an error; only messages of this package are sent, for others may quote the text."""
        name = type(error).__name__
        message = str(error) if isinstance(error, KPError) else f"the model failed with {name}"
        self._write({"error": name, "message": message})

    def emit(self, record: logging.LogRecord) -> None:
        self._write({"log": record.getMessage()})

    def _write(self, answer: dict[str, object], data: bytes = b"") -> None:
        self.acquire()  # another thread may log
        try:
            self._file.write(json.dumps(answer).encode() + b"\n" + data)
            self._file.flush()
        finally:
            self.release()
