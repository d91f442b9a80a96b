"""A local model in a process of its own.

Importing what runs a model takes up to seconds in which other threads stall: libraries are linked
while Python runs nothing else, and with torch a third of a million objects make every full garbage
collection long, then and later. Some packages also register what is to happen at forks, and print
errors if a fork comes while they are imported. In a process of its own a model stalls nobody, and
neither forks nor the exit of this process wait for it.

The two speak over pipes, one JSON line a message; vectors follow theirs as bytes. The process ends
when its standard input does, so it outlives nobody.
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
from contextlib import suppress
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain import errors
from kp_langchain._forksafe import NoForkSection, allow_forks
from kp_langchain._logging import warn_once
from kp_langchain.embedding.local_models import Loaded, LocalModel, ModelLoadError
from kp_langchain.errors import EmbedderError, KPError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A process that was asked and keeps silent for so long is frozen: a text takes milliseconds.
_SILENCE_S = 30
_SILENCE_PER_TEXT_S = 1
_MOST_BYTES = 1 << 16

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"


class ModelProcessEndedError(EmbedderError):
    """The process that runs the embedding model has ended, is frozen, or cannot be started."""


def load(model: type[LocalModel], wanted: str | None) -> Loaded | None:
    """Load a model in a process of its own.

    Args:
        model: Its class.
        wanted: Name or path of the model; None for the default one.

    Returns:
        The model; None if no Python interpreter can be started here.

    Raises:
        MissingExtraError: What runs the model is not installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    executable = _python()
    if executable is None:
        return None
    try:
        return _ModelProcess(executable, model, wanted).loaded()
    except ModelProcessEndedError:  # it may have been denied a process, or the memory for one
        return None


def _python() -> str | None:
    """Return the interpreter to start; None where this program is none, as in a frozen one."""
    executable = get_executable()
    path = os.fsdecode(executable or "")
    is_python = Path(path).name.lower().startswith(("python", "pypy"))
    return path if is_python and not getattr(sys, "frozen", False) else None


class _ModelProcess:
    """The process, as this one sees it. One question at a time.

    A forked child closes its copies of the pipes: the process answers the one that started it.

    Raises:
        ModelProcessEndedError: It cannot be started.
    """

    def __init__(self, executable: str, model: type[LocalModel], wanted: str | None) -> None:
        program = _PROGRAM.format(path=sys.path, module=__name__)
        barred = [name for name, module in sys.modules.items() if module is None]
        home = [model.__module__, model.__qualname__]
        arguments = json.dumps({"model": home, "wanted": wanted, "barred": barred})
        with _STARTING:
            theirs_in, self._requests = os.pipe()
            if os.name == "posix":
                os.set_blocking(self._requests, False)  # who reads it may be frozen
            answers, theirs_out = os.pipe()
            self._answers = answers
            self._received = bytearray()
            self._pid: int | None = None
            self._silence_s: int | None = None  # while it loads, it may download something
            self._close = weakref.finalize(self, _close, self._requests, self._answers)
            self._close.atexit = False  # runs that end with this process are still to be scored
            _ALL.add(self)
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our program
                    [executable, *_flags(), "-c", program, arguments],
                    stdin=theirs_in,
                    stdout=theirs_out,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C at a terminal is not for it
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

    def loaded(self) -> Loaded:
        """Wait for the model, and return it.

        Raises:
            MissingExtraError: What runs the model is not installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The process has ended.
        """
        with allow_forks():
            if os.name == "posix":
                self._process.wait()  # it goes into the background at once: see `serve`
            answer = self._answer()
        self._pid = answer["pid"]
        return Loaded(
            self._embed,
            self._unreadable_share if answer["tells_unreadable"] else None,
            answer["name"],
            answer["backend"],
            answer["revision"],
            lambda: self.has_ended,
        )

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        with allow_forks():
            answer = self._ask(len(texts), embed=texts)
        return np.frombuffer(answer["bytes"], dtype=np.float32).reshape(answer["shape"])

    def _unreadable_share(self, text: str) -> float:
        with allow_forks():
            share: float = self._ask(1, unreadable_share=text)["share"]
        return share

    def _ask(self, texts: int, **request: object) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        self._silence_s = _SILENCE_S + _SILENCE_PER_TEXT_S * texts
        try:
            left = memoryview(line)
            while left:
                self._wait_for(self._requests, selectors.EVENT_WRITE)
                left = left[os.write(self._requests, left) :]
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise _ended() from error
            raise
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._read()
            while "log" in answer:
                warn_once(answer["log"], "%s", answer["log"])
                answer = self._read()
        except BaseException as error:
            self._close()  # what it answers later would be taken for the next answer
            if isinstance(error, OSError | ValueError | EOFError):
                raise _ended() from error
            raise
        if "error" in answer:
            kind = {**vars(errors), "ModelLoadError": ModelLoadError}.get(answer["error"])
            raise (kind or EmbedderError)(answer["message"])
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
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _receive(self) -> None:
        self._wait_for(self._answers, selectors.EVENT_READ)
        part = os.read(self._answers, _MOST_BYTES)
        if not part:
            raise EOFError
        self._received += part

    def _wait_for(self, pipe: int, event: int) -> None:
        """Wait until a pipe can be read or written.

        Raises:
            ModelProcessEndedError: The process kept silent for too long, and was ended.
        """
        if self._silence_s is None or os.name != "posix":  # Windows cannot wait for pipes
            return
        with selectors.PollSelector() as selector:  # others have a descriptor, which a fork copies
            selector.register(pipe, event)
            # Not by the clock, which goes on while this process is frozen together with that one.
            for _ in range(self._silence_s):
                if selector.select(1.0):
                    return
        if self._pid is not None:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)  # or it would keep its memory for ever
        raise ModelProcessEndedError(
            f"the process that runs the embedding model has not answered for {self._silence_s} s"
        )

    def forget(self) -> None:
        """Close this process's ends of the pipes."""
        self._close()


_STARTING = NoForkSection()  # a child must not inherit a pipe that nobody closes there
_ALL: weakref.WeakSet[_ModelProcess] = weakref.WeakSet()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _ended() -> ModelProcessEndedError:
    return ModelProcessEndedError("the process that runs the embedding model has ended")


def _flags() -> list[str]:
    """Return the options that keep out what this interpreter keeps out, and the folder it is in."""
    kept_out = {"ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
    return ["-P", *(flag for name, flag in kept_out.items() if getattr(sys.flags, name))]


def _forget_all() -> None:
    for process in list(_ALL):
        process.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def serve() -> None:
    """Be the process: load the model that the last argument tells, then answer."""
    if hasattr(os, "fork") and os.fork():
        os._exit(0)  # nobody's child: a host may wait for all of its own, or count them
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the host may still need it when it gets these
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(os.dup(0), requests), daemon=True).start()
    answers = _Answers(os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # what packages print is no answer
        os.dup2(nowhere, standard)
    log = logging.getLogger("kp_langchain")
    log.addHandler(answers)
    log.propagate = False
    arguments = json.loads(sys.argv[-1])
    sys.modules.update(dict.fromkeys(arguments["barred"]))  # what the host may not import
    try:
        module, name = arguments["model"]
        model = getattr(importlib.import_module(module), name)()
        loaded = model._open(arguments["wanted"])  # noqa: SLF001 - one with this module
    except Exception as error:  # noqa: BLE001 - told to who waits
        answers.fail(error)
        os._exit(0)
    tells_unreadable = loaded.unreadable_share is not None
    answers.send(
        name=loaded.name,
        backend=loaded.backend,
        revision=loaded.revision,
        tells_unreadable=tells_unreadable,
        pid=os.getpid(),
    )
    while True:
        request = requests.get()
        try:
            if "embed" in request:
                answers.send_vectors(loaded.encode(request["embed"]))
            elif loaded.unreadable_share is not None:
                answers.send(share=loaded.unreadable_share(request["unreadable_share"]))
        except Exception as error:  # noqa: BLE001 - told to who asked
            answers.fail(error)


def _read(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(0)


class _Answers(logging.Handler):
    """Writes answers, and what is logged while they are worked out."""

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
        """Tell of an error; in words only if they are our own, for others may quote the text."""
        name = type(error).__name__
        message = str(error) if isinstance(error, KPError) else f"the model failed with {name}"
        self._write({"error": name, "message": message})

    def emit(self, record: logging.LogRecord) -> None:
        self._write({"log": record.getMessage()})

    def _write(self, answer: dict[str, object], more: bytes = b"") -> None:
        self.acquire()  # another thread may log
        try:
            self._file.write(json.dumps(answer).encode() + b"\n" + more)
            self._file.flush()
        finally:
            self.release()
