"""Where a Valkey server is and how to log in there: one URL, taken apart and checked.

No connection and no file is opened here. A password is held, and never shown: not by `repr`,
not by an error, not by a label.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from valkey.connection import parse_url

from pyrula.contracts.errors import ConfigurationError

__all__ = ["Address"]

_PLAIN: Final = ("redis", "valkey")
_TLS: Final = ("rediss", "valkeys")
_SCHEMES: Final = (*_PLAIN, *_TLS, "unix")
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_OPTIONS: Final = ("db", "username", "password", *_TLS_OPTIONS)
_CERT_REQS: Final = ("none", "optional", "required")
_DEFAULT_PORT: Final = 6379


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server: where it listens, which database, as whom, and whether inside TLS."""

    host: str = "localhost"
    port: int = _DEFAULT_PORT
    path: str | None = None
    """The socket file; when set, host and port mean nothing."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names.

        Schemes: `redis`, `valkey`; `rediss`, `valkeys` (TLS); `unix` (a socket file). Query options:
        `db`, `username`, `password`, and for TLS `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
        `ssl_cert_reqs` (none, optional, required), `ssl_check_hostname`.
        Raises `ConfigurationError`; its message never repeats the URL, since that may hold a password.
        """
        scheme, options = _check(url)
        try:
            parts: dict[str, Any] = parse_url(url)
            db = int(parts.get("db", 0))
        except ValueError:
            # The parser's own words can quote a part of the password.
            raise ConfigurationError(_UNREADABLE) from None
        if scheme == "unix" and not parts.get("path"):
            raise ConfigurationError("the Valkey URL has the scheme unix and names no socket file")
        if db < 0:
            raise ConfigurationError("the Valkey URL names a negative database")
        tls = scheme in _TLS
        if not tls and (odd := [name for name in options if name in _TLS_OPTIONS]):
            raise ConfigurationError(f"the Valkey URL has {odd[0]}, which goes with the scheme valkeys or rediss only")
        return cls(
            host=parts.get("host", "localhost"),
            port=parts.get("port", _DEFAULT_PORT),
            path=parts.get("path") if scheme == "unix" else None,
            db=db,
            username=parts.get("username") or None,
            password=parts.get("password") or None,
            tls=tls,
            ca_certs=parts.get("ssl_ca_certs"),
            certfile=parts.get("ssl_certfile"),
            keyfile=parts.get("ssl_keyfile"),
            cert_reqs=_cert_reqs(parts.get("ssl_cert_reqs")),
            check_hostname=parts.get("ssl_check_hostname") is not False,
        )

    @property
    def label(self) -> str:
        """What a message calls this server: `host:port`, or the path of the socket file."""
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext:
        """A fresh client context with these certificates. Reads files: call it off the loop.

        Raises `OSError` (`ssl.SSLError` among them) when a file is missing or is no certificate.
        """
        context = ssl.create_default_context(cafile=self.ca_certs)
        context.check_hostname = self.check_hostname and self.cert_reqs == "required"
        context.verify_mode = ssl.VerifyMode[f"CERT_{self.cert_reqs.upper()}"]
        if self.certfile is not None:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context


_UNREADABLE: Final = (
    "the Valkey URL cannot be read: the port or the database is no number"
    " (a password with '/', '#', '?' or '@' in it must be percent-encoded)"
)


def _check(url: str) -> tuple[str, list[str]]:
    """The scheme and the names of the query options, once both are known to be ours."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        path = parts.path.strip("/")
        bad = (parts.port is not None and not parts.port) or bool(parts.fragment)
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"a Valkey URL begins with one of {', '.join(f'{name}://' for name in (*_SCHEMES, 'embedded'))}"
        )
    if bad or (scheme != "unix" and path and not path.isdigit()):
        raise ConfigurationError(_UNREADABLE)
    options = list(parse_qs(parts.query, keep_blank_values=True))
    if any(name not in _OPTIONS for name in options):
        raise ConfigurationError(f"the Valkey URL has an unknown option; there are {', '.join(_OPTIONS)}")
    return scheme, options


def _cert_reqs(value: str | None) -> str:
    if value is None:
        return "required"
    name = value.lower().removeprefix("cert_")
    if name not in _CERT_REQS:
        raise ConfigurationError(f"ssl_cert_reqs in the Valkey URL is one of {', '.join(_CERT_REQS)}")
    return name
