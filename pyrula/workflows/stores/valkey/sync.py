"""Synchronous clients of valkey-py for an address: upkeep, and the thread that renews leases."""

from __future__ import annotations

from typing import Any

import valkey

from pyrula.workflows.stores.valkey.address import Address

__all__ = ["close", "run", "run_many", "sync_client"]


def sync_client(address: Address, *, timeout: float) -> valkey.Valkey:
    """A client that gives up on a connection or an answer after `timeout` seconds."""
    options: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "client_name": "pyrula",
    }
    if address.path is not None:
        return valkey.Valkey(unix_socket_path=address.path, **options)
    if address.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": address.ca_certs,
            "ssl_certfile": address.certfile,
            "ssl_keyfile": address.keyfile,
            "ssl_cert_reqs": address.cert_reqs,
            "ssl_check_hostname": address.check_hostname,
        }
    return valkey.Valkey(host=address.host, port=address.port, socket_keepalive=True, **options)


# valkey-py does not annotate the three below.


def run(client: valkey.Valkey, *command: str | int | bytes) -> Any:
    """One command."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def run_many(client: valkey.Valkey, commands: list[tuple[str | int | bytes, ...]]) -> list[Any]:
    """Several commands in one round trip; the first error is raised."""
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
        answers: list[Any] = pipe.execute()  # type: ignore[no-untyped-call]
        return answers


def close(client: valkey.Valkey) -> None:
    """Close the client's connections."""
    client.close()  # type: ignore[no-untyped-call]
