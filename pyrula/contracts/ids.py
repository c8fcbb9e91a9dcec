"""Identifiers and the hashes that must never change: run ids, shards, input digests."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import Final

from pyrula.contracts.errors import ConfigurationError, InvalidInput

__all__ = [
    "DEFAULT_OWNER",
    "check_id",
    "check_namespace",
    "check_text",
    "check_workflow_name",
    "digest",
    "new_id",
    "run_id_for_key",
    "shard_of",
]

DEFAULT_OWNER: Final = ""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_MAX_ID: Final = 255
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Braces would move a key to another cluster slot; control characters and blanks hurt every log.
_FORBIDDEN: Final = re.compile(r"[{}\x00-\x20\x7f]")


_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]


def _base32(number: int, pairs: int) -> str:
    """A number as `pairs` pairs of base-32 digits, most significant first."""
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(10 * (pairs - 1), -1, -10)])


def new_id() -> str:
    """A new run, message or worker id: 26 characters, sorting by creation time (48 bits of ms, 80 of chance)."""
    return _base32((time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big"), 13)


def run_id_for_key(workflow: str, idempotency_key: str) -> str:
    """The run id that belongs to an idempotency key of a workflow: the same for ever, everywhere."""
    raw = hashlib.blake2b(f"{workflow}\x00{idempotency_key}".encode("utf-8", "surrogatepass"), digest_size=16)
    return "k" + _base32(int.from_bytes(raw.digest(), "big"), 13)


def digest(data: bytes) -> str:
    """A short digest of an encoded input, to tell the same submission from another."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def shard_of(run_id: str, shard_count: int) -> int:
    """The shard of a run: a stable hash of its id, modulo the count."""
    return int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=4).digest(), "big") % shard_count


def check_id(value: str, what: str) -> str:
    """Refuse an id that could not be a key of the store; `what` names it in the message."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} must be a non-empty string", what)
    if len(value) > _MAX_ID:
        raise InvalidInput(f"{what} is {len(value)} characters long; the limit is {_MAX_ID}", what)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate, which is not text", what) from None
    if found := _FORBIDDEN.search(value):
        raise InvalidInput(f"{what} {value!r} holds {found.group()!r}; braces, blanks and controls are refused", what)
    return value


def check_text(value: str, what: str) -> None:
    """Refuse a name that is no text. Cheap for what is plain."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{what} holds a lone surrogate, which is not text", what) from None


def check_workflow_name(name: str) -> str:
    """Refuse a workflow name that could not be part of a key."""
    try:
        return check_id(name, "workflow name")
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from None


def check_namespace(name: str) -> str:
    """Refuse a namespace whose keys could be taken for another's.

    Letters, digits, `.`, `_` and `-`, at most 63: no separator of a key may occur in it, so
    that no namespace's prefix can be the beginning of another's keys.
    """
    if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
        raise ConfigurationError(
            f"namespace {name!r} is not valid: 1 to 63 letters, digits, dots, underscores and dashes, "
            "the first a letter or digit"
        )
    return name
