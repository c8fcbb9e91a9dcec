"""What a Valkey URL means, and that no message or repr shows what is secret in it."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import ConfigurationError
from pyrula.workflows.stores.valkey.address import Address


@pytest.mark.parametrize(
    ("url", "address", "label"),
    [
        ("redis://localhost", Address(), "localhost:6379"),
        ("valkey://h:7000/2", Address(host="h", port=7000, db=2), "h:7000"),
        ("redis://h?db=4", Address(host="h", db=4), "h:6379"),
        ("redis://:p%40ss%2F1@h", Address(host="h", password="p@ss/1"), "h:6379"),
        ("redis://ann:pw@h", Address(host="h", username="ann", password="pw"), "h:6379"),
        ("redis://ann@h", Address(host="h", username="ann"), "h:6379"),
        ("redis://[::1]:7000", Address(host="::1", port=7000), "[::1]:7000"),
        ("rediss://h", Address(host="h", tls=True), "h:6379"),
        ("valkeys://h?ssl_cert_reqs=none", Address(host="h", tls=True, cert_reqs="none"), "h:6379"),
        (
            "rediss://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=false",
            Address(host="h", tls=True, ca_certs="/ca", certfile="/c", keyfile="/k", check_hostname=False),
            "h:6379",
        ),
        ("unix:///run/v.sock", Address(path="/run/v.sock"), "/run/v.sock"),
        ("unix://:pw@/run/v%20x.sock?db=1", Address(path="/run/v x.sock", db=1, password="pw"), "/run/v x.sock"),
    ],
)
def test_the_parts_of_a_url(url: str, address: Address, label: str) -> None:
    assert Address.parse(url) == address
    assert Address.parse(url).label == label


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://:s3cret@h",
        "redis://:s3cret/x@h:6379",
        "redis://:s3cret#x@h:6379",
        "redis://:s3cret@h:port",
        "redis://:s3cret@h:99999",
        "redis://:s3cret@h/first",
        "redis://:s3cret@h?db=first",
        "redis://:s3cret@h?db=-1",
        "redis://:s3cret@h?colour=red",
        "redis://:s3cret@h?ssl_ca_certs=/ca",
        "rediss://:s3cret@h?ssl_cert_reqs=maybe",
        "redis://:s3cret@[::1",
        "unix://",
    ],
)
def test_a_url_that_means_nothing_is_refused_in_one_line_without_its_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address.parse(url)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_is_not_shown() -> None:
    address = Address.parse("redis://ann:s3cret@h/1")
    assert "s3cret" not in f"{address!r} {address} {address.label}"
    assert address.password == "s3cret"
