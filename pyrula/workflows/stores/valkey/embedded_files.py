"""What an embedded server's directory holds, and how long paths are reached through short ones.

Every name in the directory is decided here. Nothing here starts a process or talks to one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable

__all__ = ["DataDirectory", "Fsync", "blamed_on", "render_config"]

Fsync = Literal["always", "everysec", "no"]

# The kernel's field for a socket's path holds 104 bytes on macOS and 108 on Linux, a closing NUL included.
_LONGEST_SOCKET_PATH = 103

_LARGEST_LOG = 4 * 1024 * 1024

# What the server must be for its data to be safe and its users to find it.
_FIXED: Mapping[str, str] = {
    "unixsocket": "valkey.sock",
    "unixsocketperm": "700",
    "daemonize": "no",
    "supervised": "no",
    "logfile": '""',
    "save": '""',
    "appendonly": "yes",
    "aof-load-truncated": "yes",
    "maxmemory-policy": "noeviction",
    "shutdown-on-sigterm": "force",
    "always-show-logo": "no",
}
# More that would move the data, or lock out the users who come by `url`.
_REFUSED = frozenset(_FIXED) | {
    *("appendfsync", "appendfilename", "appenddirname", "dir", "pidfile", "include", "bind"),
    *("requirepass", "user", "aclfile", "cluster-enabled", "replicaof", "shutdown-on-sigint"),
}


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A server's directory: the data, the log, and the files by which its users and keeper agree."""

    path: Path

    @classmethod
    def prepare(cls, directory: Path) -> DataDirectory:
        """Make the directory (mode 0700) when it is not there; raises `ConfigurationError` when that fails."""
        with blamed_on(directory):
            path = Path(os.path.realpath(directory.expanduser()))
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(path)

    @property
    def log(self) -> Path:
        """The server's log, and the keeper's."""
        return self.path / "valkey.log"

    @property
    def config(self) -> Path:
        """The server's configuration, written anew at each start."""
        return self.path / "valkey.conf"

    @property
    def door(self) -> Path:
        """Lock: whoever joins or starts, one at a time."""
        return self.path / "valkey.door.lock"

    @property
    def users(self) -> Path:
        """Lock: shared by all users, and in the end the keeper's alone."""
        return self.path / "valkey.users.lock"

    @property
    def keeper(self) -> Path:
        """Lock: held as long as a keeper lives."""
        return self.path / "valkey.keeper.lock"

    @property
    def server(self) -> Path:
        """Lock: held as long as a server process lives, with or without its keeper.

        On the directory itself, so that nobody removes it and leaves the data to two servers.
        """
        return self.path

    @property
    def alias_record(self) -> Path:
        """Names the short link to this directory, if it needs one."""
        return self.path / "valkey.alias"

    def address(self) -> Path:
        """Return the socket's path, through a short link when the directory's own path is too long for one.

        The caller holds the users lock: a keeper removes the link only when nobody does. Raises
        `ConfigurationError` when even the directory for temporary files is too deep.
        """
        direct = self.path / _FIXED["unixsocket"]
        if len(os.fsencode(direct)) <= _LONGEST_SOCKET_PATH:
            return direct
        link = self._recorded_link()
        if link is None or not self._make_link(link):
            link = self._new_link()
        return link / direct.name

    def _recorded_link(self) -> Path | None:
        try:
            return Path(self.alias_record.read_text("utf-8", "surrogateescape"))
        except FileNotFoundError:
            return None

    def _new_link(self) -> Path:
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  (only for a directory of its own)
            link = Path(parent) / f"pyrula-{secrets.token_hex(4)}" / "data"
            fits = len(os.fsencode(link / _FIXED["unixsocket"])) <= _LONGEST_SOCKET_PATH
            if fits and self._make_link(link):
                self.alias_record.write_text(str(link), "utf-8", "surrogateescape")
                return link
        raise ConfigurationError(
            f"{self.path} is too long a path for a socket, and so is any under {tempfile.gettempdir()}; "
            "use a shorter one for the data, or set TMPDIR to one"
        )

    def _make_link(self, link: Path) -> bool:
        """Make `link` point here, in a directory that only this user can enter; `False` if it is another's."""
        try:
            link.parent.mkdir(mode=0o700)
        except FileExistsError:
            found = link.parent.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return False
        except OSError:
            return False
        if not link.is_symlink():
            link.symlink_to(self.path)
        return link.readlink() == self.path

    def write_config(self, text: str) -> None:
        """Put `text` where the server reads it, whole or not at all."""
        fresh = self.config.with_suffix(".conf.new")
        with open(fresh, "w", opener=_private) as file:
            file.write(text)
        fresh.replace(self.config)

    def running_config(self) -> str:
        """Return what the running server was started with; nothing when somebody removed the file."""
        try:
            return self.config.read_text()
        except FileNotFoundError:
            return ""

    def drop_alias(self) -> None:
        """Remove the short link. The caller holds the users lock alone, and no keeper lives."""
        link = self._recorded_link()
        if link is not None:
            with contextlib.suppress(OSError):  # somebody cleaned up there, or it is not this directory's
                link.unlink()
                link.parent.rmdir()
            self.alias_record.unlink()

    def open_log(self) -> BinaryIO:
        """Open the log for appending; one that has grown over 4 MiB is set aside first, as `valkey.log.1`."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LARGEST_LOG:
                self.log.replace(self.log.with_suffix(".log.1"))
        return open(self.log, "ab", opener=_private)

    def log_tail(self, start: int) -> str:
        """Return the last lines of the log from byte `start` on, as one line without times and numbers."""
        with self.log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
        # "<pid>:<role> <day> <month> <year> <time> <level> <message>", except before the log is set up
        messages = [re.sub(r"^\d+:\w+ (\d+ \w+ \d+ [\d:.]+ )?([*#.-] )?", "", line).strip() for line in lines]
        return " | ".join([message for message in messages if message][-4:]) or "it wrote nothing"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def render_config(fsync: Fsync, extra: Mapping[str, str]) -> str:
    """Return the server's configuration as text; raises `ConfigurationError` for an option that may not be set.

    Values of `extra` stand as they are, quotes included, so that an option may take several words.
    """
    if fsync not in get_args(Fsync):
        raise ConfigurationError(f"fsync={fsync!r} is not one of {', '.join(get_args(Fsync))}")
    for option, value in extra.items():
        if option.lower() in _REFUSED:
            raise ConfigurationError(f"extra_config may not set {option}: an embedded server depends on it")
        if not re.fullmatch(r"[A-Za-z0-9-]+", option) or not value.isprintable():
            raise ConfigurationError(f"extra_config has no valid option in {option!r}: {value!r}")
    options = {**_FIXED, "bind": "127.0.0.1", "port": "0", "appendfsync": fsync}
    options.update({option.lower(): value for option, value in extra.items()})
    return "".join(f"{option} {value}\n" for option, value in options.items())


@contextlib.contextmanager
def blamed_on(directory: Path) -> Iterator[None]:
    """Turn the system's errors about files into one line that names the directory."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise ConfigurationError(f"{directory} is a file, or below one; an embedded server needs a directory") from None
    except PermissionError as error:
        raise ConfigurationError(
            f"no permission for {error.filename or directory}; an embedded server writes there"
        ) from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name; a home that nobody has
        raise ConfigurationError(f"{str(directory)!r} cannot be a directory: {error}") from None
    except OSError as error:
        unfit = error.errno in (
            errno.EROFS,
            errno.ENOLCK,
            errno.EOPNOTSUPP,
            errno.ENAMETOOLONG,
            errno.ELOOP,
            errno.ENOENT,
        )
        kind = ConfigurationError if unfit else StoreUnavailable
        raise kind(f"an embedded server cannot use {directory}: {error.strerror}") from error
