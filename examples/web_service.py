"""A web service that loses no run when its server is stopped.

Run it with `uvicorn examples.web_service:app`, ask it with `curl localhost:8000/?task=hedge`, and
stop it with Ctrl-C or `kill`. Run as a script, as here, it starts, is asked, and ends.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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


# It stands for your agent: any LangChain or LangGraph runnable.
agent = RunnableLambda(lambda task: f"Done, with {search.invoke({'task': task})}.")
store = TraceStore(Path(tempfile.mkdtemp(), "traces.db"))
handler = KPCallbackHandler("finance", store=store, scorer=Scorer(embedder=None))


async def ask(request: Request) -> PlainTextResponse:
    """Answer one request with one run of the agent."""
    task = request.query_params.get("task", "hedge")
    return PlainTextResponse(await agent.ainvoke(task, {"callbacks": [handler]}))


# The plain way, the same for FastAPI: when the server stops, what was recorded is stored and sent.
app = Starlette(routes=[Route("/", ask)], lifespan=handler.lifespan)


# With a lifespan of your own, which runs what the service needs besides:
@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Open what the service needs; close it before the runs are stored."""
    async with handler.lifespan():
        yield


app_with_more = Starlette(routes=[Route("/", ask)], lifespan=lifespan)


async def main() -> None:
    """Start the service as a server does, ask it three times, and stop it."""
    import httpx

    async with app.router.lifespan_context(app):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        async with client:
            for task in ("hedge", "yen", "euro"):
                answer = await client.get("/", params={"task": task})
                print(answer.text)
    print(f"{store.count()} runs in the store")


if __name__ == "__main__":
    asyncio.run(main())
