"""An async web service that loses no run when its server is stopped.

    uvicorn examples.web_service:app      # then: curl 'localhost:8000/?task=hedge', and Ctrl-C

Run as a script, it starts the service in this process, asks it three times, and stops it:

    python examples/web_service.py        # needs the packages starlette and httpx
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kp_langchain import KPCallbackHandler, Scorer, TraceStore


@tool
def search(task: str) -> str:
    """Look something up."""
    return f"what is known about {task!r}"


# Stands for your agent: any LangChain or LangGraph runnable.
agent = RunnableLambda(lambda task: f"Done, with {search.invoke({'task': task})}.")
store = TraceStore(Path(tempfile.mkdtemp(), "runs.db"))
handler = KPCallbackHandler("finance", store=store, scorer=Scorer(embedder=None))


async def ask(request: Request) -> PlainTextResponse:
    """Answer one request with one run of the agent."""
    task = request.query_params.get("task", "hedge")
    return PlainTextResponse(await agent.ainvoke(task, {"callbacks": [handler]}))


# When the server stops, `lifespan` stores and sends what was recorded; FastAPI also takes it.
# In a lifespan of your own: `async with handler.lifespan(): yield`.
app = Starlette(routes=[Route("/", ask)], lifespan=handler.lifespan)


async def main() -> None:
    """Start the service as a server does, ask it three times, and stop it."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
        for task in ("hedge", "yen", "euro"):
            print((await client.get("http://service/", params={"task": task})).text)
    print(f"{store.count()} runs in the store")


if __name__ == "__main__":
    asyncio.run(main())
