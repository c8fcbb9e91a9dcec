"""The function library in a server: whether it is there, loading it at a deploy, removing old builds.

Synchronous, through valkey-py: this is upkeep, not the hot path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import valkey
from libvalkey import ReplyError

from pyrula.contracts.errors import StoreUnavailable
from pyrula.lua import PREFIX, library
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.sync import close, run, sync_client

__all__ = ["PRUNED_KEY", "LibraryInfo", "is_missing", "libraries", "pruned", "upgrade_scripts"]

# Server-wide by design: a library is, too. See the deployment documentation on ACLs.
PRUNED_KEY: Final = "_pyrula:{functions}:pruned_libraries"
_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class LibraryInfo:
    """A pyrula function library in a server. `current` is True for this build's."""

    name: str
    current: bool
    functions: int


def is_missing(error: ReplyError) -> bool:
    """True when a server answered that it does not have a function."""
    return "Function not found" in str(error)


def pruned(name: str, label: str) -> StoreUnavailable:
    """The error of a worker whose library was pruned while it was running."""
    return StoreUnavailable(
        f"function library {name} was pruned from {label}: this build has been replaced; "
        "stop this process and deploy the new one"
    )


def libraries(client: valkey.Valkey) -> list[LibraryInfo]:
    """The pyrula libraries in a server, this build's first."""
    found: list[Any] = run(client, "FUNCTION", "LIST", "LIBRARYNAME", f"{PREFIX}*")
    current = library().name
    infos = []
    for item in found:
        fields = item if isinstance(item, dict) else dict(zip(item[::2], item[1::2], strict=True))
        fields = {_text(k): v for k, v in fields.items()}
        name = _text(fields["library_name"])
        infos.append(LibraryInfo(name, name == current, len(fields["functions"])))
    return sorted(infos, key=lambda info: (not info.current, info.name))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def upgrade_scripts(url: str, *, prune_stale: bool = False) -> list[str]:
    """Load this build's function library into a server; with `prune_stale`, remove those of other builds.

    Gives the names of the libraries removed. They are recorded as pruned, so that a worker of
    such a build fails with `StoreUnavailable` instead of loading its library back. Prune only
    when no worker of an older build runs any more. Raises `StoreUnavailable`.
    """
    address = Address.parse(url)
    client = sync_client(address, timeout=_TIMEOUT)
    try:
        current = library()
        client.srem(PRUNED_KEY, current.name)
        client.function_load(current.source, replace=True)
        removed = []
        if prune_stale:
            for info in libraries(client):
                if not info.current:
                    client.sadd(PRUNED_KEY, info.name)
                    client.function_delete(info.name)
                    removed.append(info.name)
        return removed
    except (valkey.exceptions.ValkeyError, OSError) as error:
        raise StoreUnavailable(f"{address.label}: {error}") from error
    finally:
        close(client)
