"""Web services and a task queue that play an agent run a request, for `tests.faults.endings`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from tests.faults.ending_programs import aplay, handler, play

_celery_loads = threading.Lock()


def asgi(**options: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def ask(_: Request) -> PlainTextResponse:
        await aplay()
        return PlainTextResponse("42")

    def ask_in_a_thread(_: Request) -> PlainTextResponse:
        play()
        return PlainTextResponse("42")

    routes = [Route("/", ask), Route("/thread", ask_in_a_thread)]
    return Starlette(routes=routes, **options)


def asgi_with_lifespan() -> Any:
    return asgi(lifespan=handler().lifespan)


def wsgi(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    play()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"42"]


def celery() -> Any:
    # Celery makes its names when they are asked for, which two threads must not do at once.
    with _celery_loads:
        from celery import Celery

    app = Celery("endings", broker="filesystem://")
    app.conf.broker_transport_options = {
        "data_folder_in": "queue",
        "data_folder_out": "queue",
        "processed_folder": "queue",
        "control_folder": "control",
        "store_processed": False,
    }
    app.conf.worker_hijack_root_logger = False
    app.task(name="play")(play)
    return app
