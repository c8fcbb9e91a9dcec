"""What the messages in a run's inbox ask of the run itself, read off them. What is done about it is the attempt's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyrula.contracts.mail import Mail, MailKind

if TYPE_CHECKING:
    from pyrula.actors.attempt import Attempt

__all__ = ["drop_old_news", "requested", "standing_pause"]


def requested(mail: Mail) -> dict[str, Any]:
    """What a cancel request says of itself: its reason, and what a parent adds that asks."""
    if mail.name == "parent" and isinstance(mail.payload, dict):
        return dict(mail.payload)
    return {"reason": mail.payload}


def standing_pause(attempt: Attempt) -> Mail | None:
    """The request to pause that stands. It stays in the inbox until it is taken back; then both go."""
    asked = [mail for mail in attempt.mail if mail.kind in (MailKind.PAUSE, MailKind.UNPAUSE)]
    while any(mail.kind == MailKind.UNPAUSE for mail in asked):
        mail = asked.pop(0)
        attempt.consume(mail)
        attempt.recorder.discard(mail.raw)
    return asked[-1] if asked else None


def drop_old_news(attempt: Attempt) -> None:
    """News of a child whose end is recorded goes with the next append."""
    still_open = {child.run_id for child in attempt.children.values()}
    for mail in [m for m in attempt.mail if m.kind == MailKind.CHILD and m.name not in still_open]:
        attempt.consume(mail)
        attempt.recorder.discard(mail.raw)
