"""Messages to a run: what a client puts into its inbox and the run actor takes out. Encoding only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from pyrula.contracts.values import DEFAULT_LIMIT, encode

__all__ = ["Mail", "MailKind", "pack", "parse_mail"]


class MailKind:
    """What a message is for."""

    SIGNAL = "signal"
    ANSWER = "answer"
    CANCEL = "cancel"
    CHILD = "child"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Mail:
    """One message. `raw` is how it lies in the inbox.

    `name` is the signal's, or the question's, or the id of the child that has ended; for a cancel it is
    empty, or `parent` when the run's parent closes it.
    """

    raw: bytes
    kind: str
    message_id: str
    name: str
    payload: Any


def pack(kind: str, message_id: str, name: str, payload: Any, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """Encode a message. Raises `NotEncodable` and `PayloadTooLarge` as `values.encode` does."""
    body = encode(payload, path="payload", limit=limit)
    return orjson.dumps([kind, message_id, name, orjson.Fragment(body)])


def parse_mail(raw: bytes) -> Mail:
    """Decode a message."""
    kind, message_id, name, payload = orjson.loads(raw)
    return Mail(raw, kind, message_id, name, payload)
