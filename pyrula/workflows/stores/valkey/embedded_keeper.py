"""The process between an embedded server and its users, and what ties a server to its parent's life.

Started by path, never imported by the package: standard library only, and little of it, because its
start is part of the first user's wait. It runs in the server's data directory and knows the files there
by the names in its arguments. It never talks to the server, and never signals a process that is not its
own unreaped child.

    embedded_keeper.py keep BINARY CONFIG LINGER KEEPER_FD SERVER_FD STATUS_FD USERS SOCKET ALIAS
    embedded_keeper.py bind PARENT SIGNAL BINARY ARGUMENT...

`keep` moves out of the starter's process tree, starts the server, and stops it LINGER seconds after the
last shared lock on USERS is gone: the kernel drops such a lock however its holder ends. `bind` becomes
the server itself, which on Linux dies with the thread that started it.
"""

# pathlib would lengthen the start by a third.
# ruff: noqa: PTH112, PTH114, PTH106, PTH108, PTH120, PTH123

import _thread
import fcntl
import os
import signal
import sys
import time

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1

# How long a server may take to write out what it holds before it is killed.
_STOP_SECONDS = 30.0


def _become_server(argv: list[str], *, parent: int, death_signal: int) -> None:
    """Turn this process into the server; on Linux it gets `death_signal` when its parent thread dies."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above could count on it
            os._exit(1)
    os.execv(argv[0], argv)  # noqa: S606  (a fixed program, and no shell is wanted)


def _start_server(binary: str, config: str, server_fd: int) -> int:
    """Start the server as a child that holds the server lock; return its process id."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        os.close(server_fd)
        return pid
    try:
        os.set_inheritable(server_fd, True)
        _become_server([binary, config], parent=keeper, death_signal=signal.SIGTERM)
    except OSError as error:
        _log(f"cannot start {binary}: {error}")
    os._exit(127)


def _log(message: str) -> None:
    os.write(2, f"{os.getpid()}:keeper {message}\n".encode())


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Keeper:
    def __init__(self, server: int, *, linger: float, users: str) -> None:
        self._server = server
        self._linger = linger
        self._users = os.open(users, os.O_RDWR | os.O_CREAT, 0o600)
        self._signal_due = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def keep(self) -> None:
        """Return when the server has ended. Only this thread signals it and reaps it."""
        # A user's Ctrl-C and hang-up do not come here (own session); whoever ends everything at once by
        # SIGTERM ends the users too, and then the server. Handlers, unlike "ignore", are not inherited.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        _thread.start_new_thread(self._wait_for_last_user, ())
        while os.waitpid(self._server, os.WNOHANG)[0] == 0:
            if self._signal_due:
                os.kill(self._server, self._signal_due)
                self._signal_due = 0
            os.read(self._wake_read, 64)

    def _wait_for_last_user(self) -> None:
        while True:
            fcntl.flock(self._users, fcntl.LOCK_EX)  # granted once no user is left
            fcntl.flock(self._users, fcntl.LOCK_UN)
            time.sleep(self._linger)
            if _try_lock(self._users):  # kept to the end: whoever joins from here on waits for that
                break
        _log("the last user is gone, the server stops")
        self._send(signal.SIGTERM)
        time.sleep(_STOP_SECONDS)
        _log(f"the server has not stopped within {_STOP_SECONDS:g} s and is killed")
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        self._signal_due = number
        os.write(self._wake_write, b"\0")

    def clean(self, *, socket: str, alias: str) -> None:
        """Remove the socket, and the alias unless somebody still has it as an address."""
        # The keeper lock, held until this process has ended, keeps a new server from starting meanwhile.
        _remove(socket)
        if not _try_lock(self._users):
            return
        try:
            with open(alias, encoding="utf-8", errors="surrogateescape") as file:
                link = file.read()
        except FileNotFoundError:
            return
        for path in (link, os.path.dirname(link), alias):
            _remove(path)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _log(f"cannot remove {path}: {error}")


def _keep(arguments: list[str]) -> None:
    binary, config, linger, keeper_fd, server_fd, status_fd, users, socket, alias = arguments
    if os.fork():  # so that whoever started this need not reap the keeper
        os._exit(0)
    os.umask(0o077)
    for inherited in (keeper_fd, server_fd, status_fd):
        os.set_inheritable(int(inherited), False)
    server = _start_server(binary, config, int(server_fd))
    keeper = _Keeper(server, linger=float(linger), users=users)
    keeper.keep()
    keeper.clean(socket=socket, alias=alias)
    # The locks, and the status pipe whose end the starter sees, go with the process: all at once and last.


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        _keep(sys.argv[2:])
    else:
        _become_server(sys.argv[4:], parent=int(sys.argv[2]), death_signal=int(sys.argv[3]))
