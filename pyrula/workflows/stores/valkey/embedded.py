"""The embedded server: a private Valkey that lives as long as somebody uses its directory.

Each user, in whatever process, holds a shared lock; a keeper process waits for that lock alone, and stops
the server when it gets it. The kernel releases a lock however its holder ends, so nothing here rests on
clean-up code having run, and no process id is ever read from a file.

Blocking code, for worker threads and constructors; nothing here knows the store that comes by `url`.

What a process can count on:

* A user that was killed is gone like one that left. The process that started the server may end first.
* When the server or its keeper was killed, the users' address stays theirs: `ensure` by any one of them
  brings a server back to it. What is then left of the last second is the fsync policy's business.
* On Linux a server never outlives its keeper. Elsewhere it may, until the next user joins: that one stops
  it and starts a new one.
* A service manager that signals all processes of a service at once stops the server beside its users;
  let it signal the main one first (systemd: `KillMode=mixed`).
* A child made by a plain `fork` is not a user and may not use its parent's `EmbeddedServer`; it joins by
  itself. A program that a user starts is none either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.stores.valkey.embedded_binary import find_program, python_for_keeper
from pyrula.workflows.stores.valkey.embedded_files import DataDirectory, Fsync, blamed_on, render_config
from pyrula.workflows.stores.valkey.embedded_locks import FileLock
from pyrula.workflows.stores.valkey.embedded_probe import Presence, ask, presence

__all__ = ["EmbeddedServer", "Fsync"]

_log = logging.getLogger(__name__)

# Between the last user's end and the server's: spares a script of short commands a start for each.
_LINGER_SECONDS = 0.5

_POLL_SECONDS = 0.002

_STRENGTH = {"no": 0, "everysec": 1, "always": 2}


class EmbeddedServer:
    """One user's hold on the server of a directory. Made by `join`; `leave` ends it.

    An object that is collected, and a process that ends, leave as well.
    """

    def __init__(self, directory: DataDirectory, users: FileLock, config: str) -> None:
        self._directory = directory
        self._config = config
        self._users = users
        self._release = weakref.finalize(self, users.release)
        self._socket_path = Path()
        self._pid = 0

    @classmethod
    def join(
        cls,
        directory: Path,
        *,
        fsync: Fsync = "everysec",
        extra_config: Mapping[str, str] = MappingProxyType({}),
        timeout: float = 30.0,
    ) -> EmbeddedServer:
        """Join the server of `directory`, and start it when there is none; returns once it serves.

        `fsync` says what an acknowledged write survives: a power cut (`always`), one but for the last second
        (`everysec`), the server's own death (`no`). `extra_config` adds options in the server's own words
        (`{"maxmemory": "100mb"}`); a `port` among them is open to every local user, without a password.
        A server that runs already keeps its own: joining one with a weaker fsync policy than asked for is a
        `ConfigurationError`, any other difference goes to the log.

        Loading the data takes as long as it takes; everything else, `timeout` seconds in all.

        Raises `ConfigurationError` when the directory cannot be used or there is no server program, and
        `StoreUnavailable` when the server does not start or does not answer, with the log's last lines.
        """
        config = render_config(fsync, extra_config)
        data = DataDirectory.prepare(directory)
        with blamed_on(data.path):
            joined = cls(data, FileLock(data.users), config)
            try:
                joined._enter(timeout, joining=True)
            except BaseException:
                joined.leave()
                joined._drop_unused_alias()
                raise
        return joined

    @property
    def directory(self) -> Path:
        """Where the data, the configuration and the log (`valkey.log`) are."""
        return self._directory.path

    @property
    def socket_path(self) -> Path:
        """The server's unix socket: in the directory, or reached by a short link when its path is too long."""
        return self._socket_path

    @property
    def url(self) -> str:
        """The server's address in the form that drivers parse (`unix://...`)."""
        return f"unix://{quote(str(self._socket_path))}"

    @property
    def pid(self) -> int:
        """The server's process id, as of the last `join` or `ensure`."""
        return self._pid

    @property
    def left(self) -> bool:
        """Whether this hold has ended: by `leave`, or because this is a forked child."""
        return not self._users.held

    def ensure(self, *, timeout: float = 30.0) -> bool:
        """Start the server again if it is gone; `True` when this call did. Raises as `join` does.

        For a user whose connection broke. It waits for a server that is slow, and never replaces it.
        """
        if self.left:
            raise StoreUnavailable(f"this process has left the embedded server in {self.directory}; join it again")
        with blamed_on(self.directory):
            return self._enter(timeout, joining=False)

    def leave(self) -> None:
        """Use the server no more; the last one's leaving stops it, half a second later. Idempotent."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def _enter(self, timeout: float, *, joining: bool) -> bool:
        deadline = time.monotonic() + timeout
        door = FileLock(self._directory.door)
        while True:
            if not door.acquire(shared=False, timeout=deadline - time.monotonic()):
                raise self._unavailable(f"has been starting or stopping for {timeout:g} s")
            try:
                # A keeper that stops the server has this lock for itself until all is over.
                left = deadline - time.monotonic()
                if joining and not (self._users.held or self._users.acquire(shared=True, timeout=left)):
                    raise self._unavailable(f"has been stopping for {timeout:g} s")
                self._socket_path = self._directory.address()
                started = self._find_or_start(door, deadline)
            finally:
                door.release()
            if started or self._await_loaded(deadline):
                return started

    def _find_or_start(self, door: FileLock, deadline: float) -> bool:
        """Return when a server answers; `True` when this call started it. The door is locked by the caller."""
        asked_to_stop = False
        while True:
            keeper, server = FileLock(self._directory.keeper), FileLock(self._directory.server)
            try:
                if not keeper.acquire(shared=False, timeout=0):
                    if self._find():
                        return False
                    # A keeper without a server: just starting it for somebody who was killed, or just ending.
                elif server.acquire(shared=False, timeout=0):
                    self._start(keeper, server, door, deadline)
                    return True
                elif not asked_to_stop:
                    # A server without its keeper: nobody would stop it. It ends by itself on Linux.
                    with contextlib.suppress(OSError):
                        ask(str(self._socket_path), "SHUTDOWN NOW FORCE")
                    asked_to_stop = True
            finally:
                # Never unlocked, only closed: a keeper that was started has these locks from here on.
                keeper.hand_over()
                server.hand_over()
            if time.monotonic() >= deadline:
                raise self._unavailable("neither answers nor ends")
            time.sleep(_POLL_SECONDS)

    def _find(self) -> bool:
        try:
            facts = ask(str(self._socket_path), "INFO server")
            policy = ask(str(self._socket_path), "CONFIG GET appendfsync")
        except OSError:
            return False
        self._pid = int(dict(line.partition(":")[::2] for line in facts.splitlines())["process_id"])
        self._compare_config(policy.splitlines()[-1])
        return True

    def _start(self, keeper: FileLock, server: FileLock, door: FileLock, deadline: float) -> None:
        data = self._directory
        program, python = find_program(), python_for_keeper()
        data.write_config(self._config)
        with contextlib.ExitStack() as closing:
            log = closing.enter_context(data.open_log())
            log_start = log.tell()
            read_end, write_end = os.pipe()
            status = closing.enter_context(os.fdopen(read_end, "rb", buffering=0))
            status_of_keeper = closing.enter_context(os.fdopen(write_end, "wb", buffering=0))
            handed = [str(held.fileno()) for held in (keeper, server, status_of_keeper)]
            names = [path.name for path in (data.users, self._socket_path, data.alias_record)]
            # The user's terminal and process group are not the server's: Ctrl-C is for the user alone.
            process = subprocess.Popen(
                [*python, "keep", program, data.config.name, str(_LINGER_SECONDS), *handed, *names],
                cwd=data.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[int(fd) for fd in handed],
                start_new_session=True,
            )
            try:
                status_of_keeper.close()
                self._await_ready(status.fileno(), log_start, door, deadline)
            finally:
                process.wait()  # it has already handed on to the keeper

    def _await_ready(self, status: int, log_start: int, door: FileLock, deadline: float) -> None:
        """Wait until the new server serves, or its keeper has ended and so closed the `status` pipe."""
        ended = select.poll()
        ended.register(status, select.POLLIN)
        loading = False
        while (found := presence(str(self._socket_path))) is not Presence.READY or not self._find():
            if ended.poll(_POLL_SECONDS * 1000):
                raise self._unavailable(f"did not start: {self._directory.log_tail(log_start)}")
            if found is Presence.LOADING:
                loading = self._tell_loading(loading)
                door.release()  # others may join, and wait as this one does
            elif not loading and time.monotonic() >= deadline:
                raise self._unavailable(f"does not get ready: {self._directory.log_tail(log_start)}")

    def _await_loaded(self, deadline: float) -> bool:
        """Wait until a server that answered serves; `False` when it has ended instead."""
        loading = False
        while (found := presence(str(self._socket_path))) is not Presence.READY:
            if found is Presence.ABSENT:
                return False
            if found is Presence.LOADING:
                loading = self._tell_loading(loading)
            elif not loading and time.monotonic() >= deadline:
                raise self._unavailable("does not answer")
            time.sleep(_POLL_SECONDS)
        return True

    def _tell_loading(self, told: bool) -> bool:
        if not told:
            _log.info("the embedded server in %s loads its data", self.directory)
        return True

    def _compare_config(self, policy: str) -> None:
        asked, started_with = _options(self._config), _options(self._directory.running_config())
        if _STRENGTH[asked["appendfsync"]] > _STRENGTH.get(policy, 0):
            raise ConfigurationError(
                f"the embedded server in {self.directory} runs with fsync={policy}, which is weaker than "
                f"fsync={asked['appendfsync']}; end its other users first, or ask for what it has"
            )
        different = sorted(option for option in asked if started_with and started_with.get(option) != asked[option])
        if different:
            _log.info(
                "the embedded server in %s runs already, and goes on with %s",
                self.directory,
                ", ".join(f"{option} {started_with.get(option, '(default)')}" for option in different),
            )

    def _drop_unused_alias(self) -> None:
        if not self._directory.alias_record.exists():
            return
        users, keeper = FileLock(self._directory.users), FileLock(self._directory.keeper)
        try:
            if all(lock.acquire(shared=False, timeout=0) for lock in (users, keeper)):
                self._directory.drop_alias()
        finally:
            users.release()
            keeper.release()

    def _unavailable(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"the embedded server in {self.directory} {what} (log: {self._directory.log})")


def _options(config: str) -> dict[str, str]:
    return dict(line.partition(" ")[::2] for line in config.splitlines())
