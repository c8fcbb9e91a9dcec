"""The wire inside TLS: a real server behind a proxy of the test's own, with real certificates."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.testing.servers import PrivateServer
from pyrula.workflows.stores.valkey import wire as wire_module
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.pubsub import Subscriptions
from pyrula.workflows.stores.valkey.turns import TurnLink
from pyrula.workflows.stores.valkey.wire import LoginRefused, Wire

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with the openssl program"),
]


LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "asyncio-in-turns": ("asyncio", {}),  # as on a loop without callbacks for sockets
    "trio": ("trio", {}),
}


@pytest.fixture(scope="module", params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def anyio_backend(loop_name: str) -> tuple[str, dict[str, Any]]:
    return LOOPS[loop_name]


@pytest.fixture(autouse=True)
def link_kind(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loop_name == "asyncio-in-turns":
        monkeypatch.setattr(wire_module, "open_link", TurnLink)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one authority (`ca.pem`) and what it signed: `server`, for localhost, and `client`."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Python's strict checks ask for these extensions.
    (folder / "ca.conf").write_text(
        "[req]\ndistinguished_name=dn\nx509_extensions=v3\nprompt=no\n[dn]\nCN=pyrula test authority\n[v3]\n"
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
    )
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-config", "ca.conf")
    for name in ("server", "client"):
        (folder / f"{name}.conf").write_text(
            "subjectAltName=DNS:localhost\nkeyUsage=critical,digitalSignature\nauthorityKeyIdentifier=keyid\n"
        )
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.conf")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem", "-days", "30")
    return folder


class Proxy:
    """Ends TLS on a port of localhost and passes the plain bytes on to a server."""

    def __init__(self, server: PrivateServer, certificates: Path, *, ask_for_certificate: bool = False) -> None:
        self._upstream = str(server.socket_path)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        if ask_for_certificate:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(certificates / "ca.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._carry, raw)

    def _carry(self, raw: socket.socket) -> None:
        try:
            inside = self._context.wrap_socket(raw, server_side=True)
        except OSError:
            raw.close()
            return
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(self._upstream)
        self._sockets += [inside, upstream]
        self._start(self._pump, upstream, inside)
        self._pump(inside, upstream)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            self.cut(source, target)

    @staticmethod
    def cut(*sockets: socket.socket) -> None:
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut_all(self) -> None:
        self.cut(*self._sockets)

    @contextmanager
    def running(self) -> Iterator[int]:
        self._start(self._serve)
        try:
            yield self.port
        finally:
            self.cut(self._listener)
            self.cut_all()
            for thread in self._threads:
                thread.join()
            for each in (self._listener, *self._sockets):
                each.close()


async def test_calls_of_every_size_go_through_tls(
    valkey_server: PrivateServer, certificates: Path, namespace: str
) -> None:
    big = b"0123456789" * 300_000
    with Proxy(valkey_server, certificates).running() as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificates}/ca.pem"
        wire = Wire(Address.parse(url))

        async def caller(number: int) -> None:
            for i in range(20):
                text = f"{number}-{i}".encode()
                assert await wire.call("ECHO", text) == text

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(caller, number)
            assert await wire.call("SET", f"{namespace}:big", big) == b"OK"
            assert await wire.call("GET", f"{namespace}:big") == big
        await wire.call("UNLINK", f"{namespace}:big")
        subscriptions = Subscriptions(Address.parse(url))
        async with subscriptions.listen([f"{namespace}:a"]) as listener:
            await wire.call("SPUBLISH", f"{namespace}:a", "x")
            assert await listener.next() == (f"{namespace}:a".encode(), b"x")
        await subscriptions.aclose()
        await wire.aclose()


async def test_a_cut_connection_is_made_anew_and_the_call_repeated(
    valkey_server: PrivateServer, certificates: Path
) -> None:
    proxy = Proxy(valkey_server, certificates)
    with proxy.running() as port:
        wire = Wire(Address.parse(f"valkeys://localhost:{port}?ssl_ca_certs={certificates}/ca.pem"))
        first = await wire.call("CLIENT", "ID")
        proxy.cut_all()
        assert await wire.call("CLIENT", "ID") != first
        await wire.aclose()


@pytest.mark.parametrize(
    ("options", "host"), [("", "localhost"), ("?ssl_ca_certs={folder}/ca.pem", "127.0.0.1")], ids=["authority", "host"]
)
async def test_a_server_that_cannot_be_trusted_is_refused(
    valkey_server: PrivateServer, certificates: Path, options: str, host: str
) -> None:
    with Proxy(valkey_server, certificates).running() as port:
        wire = Wire(Address.parse(f"rediss://{host}:{port}{options.format(folder=certificates)}"))
        with pytest.raises(LoginRefused, match=f"TLS with {host}:{port} failed"):
            await wire.call("PING")
        await wire.aclose()


async def test_trust_can_be_waived(valkey_server: PrivateServer, certificates: Path) -> None:
    with Proxy(valkey_server, certificates).running() as port:
        wire = Wire(Address.parse(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none"))
        assert await wire.call("PING") == b"PONG"
        await wire.aclose()


async def test_the_client_shows_its_certificate(valkey_server: PrivateServer, certificates: Path) -> None:
    with Proxy(valkey_server, certificates, ask_for_certificate=True).running() as port:
        plain = f"rediss://localhost:{port}?ssl_ca_certs={certificates}/ca.pem"
        own = f"&ssl_certfile={certificates}/client.pem&ssl_keyfile={certificates}/client.key"
        wire = Wire(Address.parse(plain + own))
        assert await wire.call("PING") == b"PONG"
        await wire.aclose()


async def test_a_plain_server_behind_a_tls_url(valkey_server: PrivateServer, certificates: Path) -> None:
    with PrivateServer(tcp=True) as server:
        wire = Wire(Address.parse(f"rediss://127.0.0.1:{server.port}"), connect_timeout=1.0)
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{server.port}"):
            await wire.call("PING")
        await wire.aclose()


async def test_a_certificate_file_that_is_not_there_is_named(valkey_server: PrivateServer, tmp_path: Path) -> None:
    wire = Wire(Address.parse(f"rediss://localhost:1?ssl_ca_certs={tmp_path}/nothing.pem"))
    with pytest.raises(ConfigurationError, match=r"nothing\.pem"):
        await wire.call("PING")
    await wire.aclose()
