"""Synchronous clients of valkey-py for an address: upkeep, and the thread that renews leases."""

from __future__ import annotations

import valkey

from pyrula.workflows.stores.valkey.address import Address

__all__ = ["sync_client"]


def sync_client(address: Address, *, timeout: float) -> valkey.Valkey:
    """A client that gives up on a connection or an answer after `timeout` seconds."""
    common = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "client_name": "pyrula",
    }
    if address.path is not None:
        return valkey.Valkey(unix_socket_path=address.path, **common)
    if address.tls:
        common |= {
            "ssl": True,
            "ssl_ca_certs": address.ca_certs,
            "ssl_certfile": address.certfile,
            "ssl_keyfile": address.keyfile,
            "ssl_cert_reqs": address.cert_reqs,
            "ssl_check_hostname": address.check_hostname,
        }
    return valkey.Valkey(host=address.host, port=address.port, socket_keepalive=True, **common)
