"""Runs a local model in a process of its own.

Importing the packages that run a model takes up to seconds, in which other threads stall: libraries
are linked while Python runs nothing else, and torch adds a third of a million objects, which make
every full garbage collection long, then and later. A model in a process of its own stalls no thread
of the host, leaves its settings of torch alone, and neither forks nor the host's exit wait for it.

The two talk over a `multiprocessing` connection. `multiprocessing.Process` does not fit, because it
runs the host's main module again, and a program may have no guard against that. The model's process
ends when the connection does, so it does not outlive the host.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain import errors
from kp_langchain._forksafe import fork_gate, leave_in_child
from kp_langchain.errors import EmbedderError, KPError, ModelLoadError, ModelProcessEndedError

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection as Connection
else:
    from multiprocessing.connection import Connection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.model_files import LoadedModel

# Otherwise the makers of these libraries are told how they are used.
_NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
# A process that does not answer for this long is frozen: a text takes milliseconds.
_SILENCE_S = 30
_SILENCE_PER_TEXT_S = 1

# It moves to the background at once: a host may wait for all of its children, or count them.
_PROGRAM = """
import os, sys
if hasattr(os, "fork") and os.fork():
    os._exit(0)
sys.path[:] = {path!r}
from {module} import serve
serve()
"""


class ModelProcess:
    """The process of a model, as its host sees it. One request at a time.

    It is started when this object is made, and loads the model meanwhile. A forked child closes its
    copy of the connection: the process answers only the one that started it.

    Args:
        loader: The function that loads the model there, as `module:function`.
        name: Name or path of the model; None for the default model.
        on_warning: Called with each line that is logged there, such as that a download begins.

    Attributes:
        is_loaded: Whether the model is loaded, as far as its messages were read. Then there are
            `name`, the model's name or path; `backend`, the package that runs it; and `folder`,
            where its files are.

    Raises:
        ModelLoadError: There is no Python interpreter to start.
        ModelProcessEndedError: The process cannot be started.
    """

    name: str
    backend: str
    folder: Path

    def __init__(self, loader: str, name: str | None, on_warning: Callable[[str], None]) -> None:
        self.is_loaded = False
        self._pid = 0
        self._on_warning = on_warning
        program = _PROGRAM.format(path=sys.path, module=__name__)
        barred = [key for key, module in sys.modules.items() if module is None]
        with fork_gate:  # a forked child must not inherit a connection that it does not know of
            self._connection, theirs = Pipe()
            leave_in_child(self)
            arguments = json.dumps([theirs.fileno(), loader, name, barred])
            try:
                process = subprocess.Popen(  # noqa: S603 - this interpreter, our program
                    [_python(), "-P", *_interpreter_flags(), "-c", program, arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C at a terminal must not reach it
                    **_inheriting(theirs.fileno()),
                )
            except OSError as error:
                raise ModelProcessEndedError(f"no process for the model: {error}") from error
            finally:
                theirs.close()
        if os.name == "posix":
            process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the model must be loaded again before it can be used."""
        return self._connection.closed

    def wait(self, timeout_s: float) -> None:
        """Wait until it has sent something that is not read yet; from any thread."""
        with suppress(OSError, ValueError):  # another thread has closed the connection
            wait([self._connection], timeout_s)

    def read_load(self) -> None:
        """Read what it has sent about the load.

        Raises:
            MissingExtraError: No package that runs the model is installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The process has ended.
            EmbedderError: Loading failed in another way.
        """
        message = None if self.is_loaded else self._receive(0)
        if message is not None:
            self._pid, self.name, self.backend, self.folder = _result(message)
            self.is_loaded = True

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Return one vector for each text; errors are those of `LocalModel.embed`."""
        vectors: NDArray[np.float32] = self._ask("encode", texts, len(texts))
        return vectors

    def unreadable_share(self, text: str) -> float | None:
        """Return the share of a text's tokens that the model cannot read; None if unknown."""
        share: float | None = self._ask("unreadable_share", text, 1)
        return share

    def leave_to_parent(self) -> None:
        """Close the connection, in a forked child."""
        self._connection.close()

    def _ask(self, method: str, argument: object, texts: int) -> Any:
        """Send a request and return the answer."""
        timeout_s = _SILENCE_S + _SILENCE_PER_TEXT_S * texts
        message = None
        try:
            message = self._receive(timeout_s, (method, argument))
        finally:
            if message is None:  # a late answer would be read as that to the next request
                self._connection.close()
        if message is None:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)  # frozen, it would hold its memory for ever
            raise ModelProcessEndedError(
                f"the process that runs the embedding model has not answered for {timeout_s} s"
            )
        return _result(message)

    def _receive(self, timeout_s: float, request: object = None) -> tuple[str, Any] | None:
        """Send a request, if there is one, and return what is answered; None if nothing in time."""
        try:
            if request is not None:
                self._connection.send(request)
            while self._connection.poll(timeout_s):
                message: tuple[str, Any] = self._connection.recv()
                if message[0] != "warning":
                    return message
                self._on_warning(message[1])
        except (EOFError, OSError) as error:
            self._connection.close()
            raise ModelProcessEndedError(
                "the process that runs the embedding model has ended"
            ) from error
        return None


def _result(message: tuple[str, Any]) -> Any:
    """Return the result that a message has, or raise the error."""
    kind, value = message
    if kind == "error":
        name, text = value
        raise getattr(errors, name, EmbedderError)(text)
    return value


def _python() -> str:
    """Return the interpreter to start; `multiprocessing.set_executable` sets another.

    Raises:
        ModelLoadError: There is none, as in a program frozen into one file.
    """
    path = os.fsdecode(get_executable() or "")
    is_python = Path(path).name.lower().startswith(("python", "pypy"))
    if not is_python or getattr(sys, "frozen", False):
        raise ModelLoadError(
            "there is no Python interpreter to run the embedding model with, as in a program that "
            "is frozen into one file; pass an embedder of your own, such as a LangChain Embeddings"
        )
    return path


def _interpreter_flags() -> list[str]:
    """Return the options that exclude the same import paths as here."""
    options = {"ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
    return [option for name, option in options.items() if getattr(sys.flags, name)]


def _inheriting(handle: int) -> dict[str, Any]:
    """Return the arguments of `Popen` that give the process its end of the connection."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": [handle]}


# ------------------------------------------------------------------ in the model's process


def serve() -> None:
    """Run the model's process: load the model that the last argument names, then answer."""
    for signal_name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the host may need the model after these
        if hasattr(signal, signal_name):
            signal.signal(getattr(signal, signal_name), signal.SIG_IGN)
    os.environ.update(_NO_TELEMETRY)
    handle, loader, model_name, barred = json.loads(sys.argv[-1])
    connection: Connection[Any, Any] = Connection(handle)
    requests: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    log = logging.getLogger("kp_langchain")
    log.addHandler(_WarningSender(connection))
    log.propagate = False
    sys.modules.update(dict.fromkeys(barred))  # modules that the host blocks
    try:
        module, _, function = loader.partition(":")
        model: LoadedModel = getattr(importlib.import_module(module), function)(model_name)
        model.encode([""])  # the first run prepares buffers
    except Exception as error:  # noqa: BLE001 - sent to the host
        connection.send(("error", _name_and_message(error)))
        os._exit(0)
    connection.send(("result", (os.getpid(), model.name, model.backend, model.folder)))
    while True:
        method, argument = requests.get()
        try:
            answer = "result", getattr(model, method)(argument)
        except Exception as error:  # noqa: BLE001 - sent to the host
            answer = "error", _name_and_message(error)
        connection.send(answer)


def _receive(
    connection: Connection[Any, Any], requests: queue.SimpleQueue[tuple[str, Any]]
) -> None:
    """Queue the host's requests; end the process when the host ends, whatever the model does."""
    with suppress(EOFError, OSError):
        while True:
            requests.put(connection.recv())
    os._exit(0)


def _name_and_message(error: Exception) -> tuple[str, str]:
    """Return an error's type and message; messages of other packages may quote the text."""
    name = type(error).__name__
    return name, str(error) if isinstance(error, KPError) else f"the model failed with {name}"


class _WarningSender(logging.Handler):
    """Sends the warnings that are logged while the model loads."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self._connection.send(("warning", record.getMessage()))
