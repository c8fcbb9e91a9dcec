"""One Valkey server as a store sees it: where it is, its wires, and calls of the function library.

Loads the library when the server does not have it (and only then), translates error replies,
joins an embedded server on first use, and records what a namespace must agree on. It does not
know what a run is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import valkey
from libvalkey import ReplyError, pack_command

from pyrula.contracts.errors import ConfigurationError, StoreError, StoreUnavailable
from pyrula.lua import Library, library
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.embedded import EmbeddedServer
from pyrula.workflows.stores.valkey.functions import PRUNED_KEY, is_missing, pruned
from pyrula.workflows.stores.valkey.keys import Keys
from pyrula.workflows.stores.valkey.loops import LoopLocal
from pyrula.workflows.stores.valkey.pubsub import Subscriptions
from pyrula.workflows.stores.valkey.sync import close, run_many, sync_client
from pyrula.workflows.stores.valkey.wire import Wire, WirePool, translate

__all__ = ["Server"]

_EMBEDDED: Final = "embedded://"
_DEFAULT_URL: Final = "redis://localhost:6379"
_FUNCTIONS: Final = (
    *("submit", "claim", "claim_run", "append", "deliver", "inbox", "wake", "heartbeat", "disown", "sweep"),
    *("terminate", "revive", "attributes", "commit", "output", "load", "listing"),
    *("schedule_put", "schedule_delete", "schedule_list", "schedule_due", "schedule_fired", "schedule_note"),
    *("emit", "events_read", "events_done", "batch_add", "batch_due", "batch_done"),
    *("trigger_list", "trigger_seek", "trigger_drop", "adopt", "collected", "kids", "closing", "closed"),
    *("pause", "unpause", "fork"),
)
Arg = str | int | bytes


class Server:
    """A server and how to call it. Built without any I/O; connects, or joins, on first use."""

    def __init__(
        self,
        url: str | None,
        *,
        shard_count: int,
        namespace: str | None,
        connect_timeout: float,
        command_timeout: float,
        fsync: str,
    ) -> None:
        if isinstance(shard_count, bool) or not isinstance(shard_count, int) or not 1 <= shard_count <= 16384:
            raise ConfigurationError(f"shard_count={shard_count!r}: a whole number from 1 to 16384 is needed")
        if fsync not in ("always", "everysec", "no"):
            raise ConfigurationError(f"fsync={fsync!r}: one of 'always', 'everysec' and 'no' is needed")
        url = url or os.environ.get("PYRULA_VALKEY_URL") or _DEFAULT_URL
        self.keys = Keys(namespace or os.environ.get("PYRULA_VALKEY_NAMESPACE") or "default", shard_count)
        self._fsync = fsync
        self._connect_timeout = connect_timeout
        self._command_timeout = command_timeout
        self._directory: Path | None = None
        self._embedded: EmbeddedServer | None = None
        self._joining = threading.Lock()
        self._pool: WirePool | None = None
        self._subscriptions: LoopLocal[Subscriptions] | None = None
        self._sync: valkey.Valkey | None = None
        self._agreed: set[str] = set()  # names whose recorded shard count is ours
        self.use(library())
        if url.startswith(_EMBEDDED):
            directory = url.removeprefix(_EMBEDDED)
            if "@" in directory:
                raise ConfigurationError("embedded:// names a directory and takes no login; write embedded:///path")
            if not directory:
                raise ConfigurationError("embedded:// needs a directory: embedded:///var/lib/app or embedded://./data")
            self._directory = Path(directory).absolute()
            self.label = f"embedded server in {directory}"
        else:
            self.address = Address.parse(url)
            self.label = self.address.label
            self._open(self.address)

    def use(self, library: Library) -> None:
        """Call the functions of this library from now on; it is loaded when a call finds it missing."""
        self._library = library
        self._names = {name: library.function(name).encode() for name in _FUNCTIONS}

    def _open(self, address: Address) -> None:
        self.address = address
        self._subscriptions = LoopLocal(lambda: Subscriptions(address, connect_timeout=self._connect_timeout))
        self._pool = WirePool(address, connect_timeout=self._connect_timeout, command_timeout=self._command_timeout)

    # --- connections --------------------------------------------------------------------

    def _join(self) -> None:
        """Join the embedded server, or make sure that it runs. Blocks."""
        with self._joining:
            if self._directory is None:
                return
            if self._embedded is None or self._embedded.left:
                self._embedded = EmbeddedServer.join(self._directory, fsync=self._fsync)  # type: ignore[arg-type]  # checked above
                self._open(Address.parse(self._embedded.url))
            else:
                self._embedded.ensure()

    async def wire(self) -> Wire:
        """This loop's connection for calls."""
        if self._pool is None:
            await anyio.to_thread.run_sync(self._join)
        assert self._pool is not None
        return self._pool.here()

    async def private_wire(self, command_timeout: float) -> Wire:
        """A connection of the caller's own, for blocking reads; the caller closes it."""
        await self.wire()
        return Wire(self.address, connect_timeout=self._connect_timeout, command_timeout=command_timeout)

    async def subscriptions(self) -> Subscriptions:
        """This loop's connection in subscribe mode."""
        await self.wire()
        assert self._subscriptions is not None
        return self._subscriptions.here()

    def client(self) -> valkey.Valkey:
        """A synchronous client, for the thread that renews leases and for upkeep. One a store."""
        if self._sync is None:
            self._join()
            assert self._pool is not None
            self._sync = sync_client(self.address, timeout=self._connect_timeout)
        return self._sync

    async def aclose(self) -> None:
        """Close all connections; the embedded server is left."""
        if self._subscriptions is not None:
            for _, subscriptions in self._subscriptions.take_all():
                await subscriptions.aclose()
        if self._pool is not None:
            await self._pool.aclose()
        if self._sync is not None:
            close(self._sync)
            self._sync = None
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None
            self._pool = None

    def expect(self, callers: int) -> None:
        """So many tasks of this loop were just woken and are about to call."""
        if self._pool is not None:
            self._pool.here().expect(callers)

    # --- calls --------------------------------------------------------------------------

    async def _ask(self, data: bytes, replies: int, retry: bool) -> Any:
        wire = await self.wire()
        try:
            return await wire.call_packed(data, replies, retry=retry)
        except StoreUnavailable:
            if self._directory is None or not retry:
                raise
            await anyio.to_thread.run_sync(self._join)
            return await (await self.wire()).call_packed(data, replies)

    async def command(self, *args: Arg) -> Any:
        """One plain command."""
        try:
            return await self._ask(pack_command(args), 1, True)
        except ReplyError as error:
            raise translate(error) from error

    async def commands(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Several plain commands in one send; the first error reply is raised."""
        if not commands:
            return []
        if len(commands) == 1:
            return [await self.command(*commands[0])]
        answers = await self._ask(b"".join([pack_command(c) for c in commands]), len(commands), True)
        for answer in answers:
            if isinstance(answer, ReplyError):
                raise translate(answer) from answer
        return list(answers)

    async def existing(self, names: Sequence[bytes]) -> list[int]:
        """Which of these keys exist, by index. One command when none does, which is the usual case."""
        if not await self.command("EXISTS", *names):
            return []
        found = await self.commands([("EXISTS", name) for name in names])
        return [i for i, answer in enumerate(found) if answer]

    async def function(self, name: str, prefix: bytes, *args: Arg) -> Any:
        """One function call; loads the library and calls again when the server does not have it."""
        data = pack_command((b"FCALL", self._names[name], b"1", prefix, *args))
        try:
            if self._pool is not None and self._directory is None:  # the hot path, without a turn through _ask
                return await self._pool.here().call_packed(data)
            return await self._ask(data, 1, True)
        except ReplyError as error:
            if not is_missing(error):
                raise translate(error) from error
        await self._load()
        try:
            return await self._ask(data, 1, True)
        except ReplyError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: ReplyError) -> StoreError:
        """An error reply as the store's error. Functions that are gone again will be loaded again: that passes."""
        if is_missing(error):
            return StoreUnavailable(f"{self.label} loses the functions that were loaded into it")
        return translate(error)

    async def functions(self, calls: Sequence[tuple[Any, ...]], *, retry: bool = True) -> list[Any]:
        """Several function calls in one send, each `(name, prefix, *args)`.

        When some are refused and others are not (a server that fills up meanwhile), the refusal
        is raised; the calls are such that they can be made again.
        """
        packed = [pack_command(("FCALL", self._names[c[0]], 1, *c[1:])) for c in calls]
        answers = await self._many(packed, retry)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, ReplyError) and is_missing(answer)]
        if missing:
            await self._load()
            for i, answer in zip(missing, await self._many([packed[i] for i in missing], retry), strict=True):
                answers[i] = answer
        for answer in answers:
            if isinstance(answer, ReplyError):
                raise self._refusal(answer) from answer
        return answers

    async def _many(self, packed: Sequence[bytes], retry: bool) -> list[Any]:
        if len(packed) == 1:
            try:
                return [await self._ask(packed[0], 1, retry)]
            except ReplyError as error:
                return [error]
        return list(await self._ask(b"".join(packed), len(packed), retry)) if packed else []

    def functions_sync(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`functions`, blocking, for the one thread that renews leases."""
        client = self.client()
        try:
            return run_many(client, [("FCALL", self._names[name], 1, prefix, *args) for name, prefix, *args in calls])
        except valkey.exceptions.ResponseError as error:
            raise StoreError(str(error)) from error
        except (valkey.exceptions.ValkeyError, OSError) as error:
            # valkey-py repeats the command, token and all, before the server's own words.
            raise StoreUnavailable(f"{self.label}: {str(error).rpartition('caused error: ')[2]}") from error

    async def _load(self) -> None:
        lib = self._library
        (gone,) = await self.commands([("SISMEMBER", PRUNED_KEY, lib.name)])
        if gone:
            raise pruned(lib.name, self.label)
        try:
            await self.command("FUNCTION", "LOAD", "REPLACE", lib.source)
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise StoreUnavailable(
                f"{self.label} does not have pyrula's functions and they could not be loaded: {error}"
            ) from error

    # --- what a namespace agrees on -----------------------------------------------------

    async def register(self, workflow: str) -> None:
        """Note a workflow name in the namespace, and that its shard count is ours.

        Once for each name and connection: a server that is there again may have forgotten it. Raises
        `ConfigurationError` when another store uses the name with another count.
        """
        if self._pool is not None and workflow in self._pool.here().noted:
            return
        key = self.keys.count_key(workflow)
        recorded, _ = await self.commands(
            [("SET", key, self.keys.shard_count, "NX", "GET"), ("SADD", self.keys.workflows, workflow)]
        )
        self._agree(workflow, recorded)
        (await self.wire()).noted.add(workflow)

    async def check(self, workflows: Sequence[str]) -> None:
        """Make sure, once for each name, that what is read was written with our shard count. Notes nothing.

        Raises `ConfigurationError` as `register` does.
        """
        new = [name for name in workflows if name not in self._agreed]
        found = await self.commands([("GET", self.keys.count_key(name)) for name in new])
        for name, recorded in zip(new, found, strict=True):
            self._agree(name, recorded)

    def _agree(self, workflow: str, recorded: bytes | None) -> None:
        if recorded is None:
            return
        if int(recorded) != self.keys.shard_count:
            raise ConfigurationError(
                f"workflow {workflow!r} is kept in {int(recorded)} shards in namespace {self.keys.namespace!r}, "
                f"this store has shard_count={self.keys.shard_count}; "
                f"use {int(recorded)}, or drain the name and delete its record"
            )
        self._agreed.add(workflow)
