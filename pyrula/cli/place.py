"""Where a command works: which server, which namespace, and the options that say so on every command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import anyio
import typer

from pyrula.cli.output import OutputClosed

if TYPE_CHECKING:
    from pyrula.workflows.client import WorkflowClient
    from pyrula.workflows.stores.valkey.store import ValkeyStore

__all__ = ["Debug", "Namespace", "Place", "ShardCount", "Url", "with_place"]

P = ParamSpec("P")
T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The server: redis://HOST:PORT, unix://PATH, embedded://DIR. Else PYRULA_VALKEY_URL, else localhost:6379.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="The first part of every key. Else PYRULA_VALKEY_NAMESPACE, else 'default'.",
        show_default=False,
    ),
]
ShardCount = Annotated[
    int | None,
    typer.Option(
        "--shard-count",
        metavar="N",
        min=1,
        max=16384,
        help="Shards of each workflow, the same for all that use the namespace (64 unless it was chosen).",
        show_default=False,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and more in the log.")]


@dataclass(frozen=True, slots=True)
class Place:
    """A server and a namespace, as asked for; None leaves the choice to the store."""

    url: str | None = None
    namespace: str | None = None
    shard_count: int | None = None
    debug: bool = False

    def store_options(self) -> dict[str, Any]:
        """The arguments of the store that were asked for."""
        asked = {"url": self.url, "namespace": self.namespace, "shard_count": self.shard_count}
        return {name: value for name, value in asked.items() if value is not None}

    def store(self, **options: Any) -> ValkeyStore:
        """The store of this place."""
        from pyrula.workflows import ValkeyStore

        return ValkeyStore(**self.store_options(), **options)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[WorkflowClient]:
        """A client, with its connections closed afterwards."""
        from pyrula.workflows import WorkflowClient

        store = self.store(**options)
        try:
            yield WorkflowClient(store)
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    def run(self, work: Callable[[WorkflowClient], Awaitable[T]]) -> T:
        """Do the work with a client of this place. Raises `OutputClosed` when nobody reads our output any more."""

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        try:
            return anyio.run(connected)
        except BrokenPipeError as error:
            raise OutputClosed from error


def with_place(command: Callable[Concatenate[Place, P], None]) -> Callable[..., None]:
    """Give a command the options that name a place. What stands behind the command wins over what stands before it."""
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    more = {"url": Url, "namespace": Namespace, "shard_count": ShardCount, "debug": Debug}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", keyword, annotation=typer.Context)]
    parameters += [parameter.replace(kind=keyword) for parameter in own]
    for name, annotation in more.items():
        default = False if name == "debug" else None
        parameters.append(inspect.Parameter(name, keyword, annotation=annotation, default=default))

    @functools.wraps(command)
    def call(**given: Any) -> None:
        outer = given.pop("ctx").find_object(Place) or Place()
        chosen = {name: given.pop(name) for name in more}
        place = Place(
            **{name: getattr(outer, name) if value in (None, False) else value for name, value in chosen.items()}
        )
        command(place, **given)  # type: ignore[call-arg]  # typer calls by the signature below

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
