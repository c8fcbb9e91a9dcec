"""An embedded worker: an application that executes its own workflows in the process that serves requests.

    uvicorn app:app

Keeps its data in an embedded server under `.demo/fastapi`, or on the server that PYRULA_VALKEY_URL names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from pyrula.contracts.errors import RunNotFound, WrongRunState
from pyrula.workflows import Context, Run, ValkeyStore, WorkflowClient, WorkflowWorker, workflow

__all__ = ["app"]


class Greeting(BaseModel):
    """The result of a run: models are fine as inputs and results."""

    text: str
    approved_by: str


@workflow(name="greeting")
async def greeting(ctx: Context, name: str) -> Greeting:
    """Write a greeting, and let a person put a name under it."""
    text = await ctx.step("write", write, name)
    answer = await ctx.interrupt({"sign": text})
    return Greeting(text=text, approved_by=answer["name"])


async def write(name: str) -> str:
    """A step."""
    return f"Hello {name}!"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The worker starts and stops with the application."""
    store = ValkeyStore(url=os.environ.get("PYRULA_VALKEY_URL", "embedded://.demo/fastapi"))
    worker = WorkflowWorker(store)
    app.state.client = worker.client
    # run() returns only after stop(), so it gets a task of its own.
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task
        await store.aclose()


app = FastAPI(title="Greetings", lifespan=lifespan)


class NewGreeting(BaseModel):
    """What is submitted. With a `key`, sending it again gives the same run."""

    name: str
    key: str | None = None


class Answer(BaseModel):
    """Who signs."""

    name: str


@app.post("/greetings", status_code=202)
async def submit(request: Request, new: NewGreeting) -> dict[str, Any]:
    """Submit a run; it goes on while this request is answered already."""
    return shown(await client_of(request).submit(greeting, {"name": new.name}, idempotency_key=new.key))


@app.get("/greetings/{run_id}")
async def get(request: Request, run_id: str) -> dict[str, Any]:
    """How the run is."""
    try:
        return shown(await client_of(request).get("greeting", run_id))
    except RunNotFound as error:
        raise HTTPException(404, str(error)) from None


@app.post("/greetings/{run_id}/answer", status_code=202)
async def answer(request: Request, run_id: str, given: Answer) -> dict[str, Any]:
    """Answer the question that the run waits with."""
    client = client_of(request)
    try:
        await client.resume("greeting", run_id, {"name": given.name})
        return shown(await client.get("greeting", run_id))
    except RunNotFound as error:
        raise HTTPException(404, str(error)) from None
    except WrongRunState as error:
        raise HTTPException(409, str(error)) from None


def client_of(request: Request) -> WorkflowClient:
    """The client of this application's worker."""
    client: WorkflowClient = request.app.state.client
    return client


def shown(run: Run) -> dict[str, Any]:
    """A run as this application shows it."""
    return {
        "run_id": run.run_id,
        "status": run.status,
        "waiting_on": run.waiting_on,
        "result": run.result,
        "error": run.error,
    }
