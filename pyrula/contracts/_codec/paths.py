"""The way to a place inside a value, and the two faults that carry one: never a value, never what it holds.

A fault is raised where something does not do and gathers its way on the way out: every
container that it passes through adds the step that led inside. Nothing is paid for it
as long as nothing is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Self

__all__ = ["Fault", "Misfit", "Refusal", "render", "type_name"]

Step = str | int

# A way longer than this is shown by its head and its tail: cycles and very deep values.
_SHOWN_WHOLE = 16
_SHOWN_HEAD = 8
_SHOWN_TAIL = 4
_KEY_SHOWN = 60


class Fault(Exception):
    """Something at one place inside a value does not do; `trail` leads there, innermost step first."""

    def __init__(self) -> None:
        super().__init__()
        self.trail: list[Step] = []

    def inside(self, step: Step) -> Self:
        """Say that the place lies inside `step` of a container."""
        self.trail.append(step)
        return self

    def path(self, root: str) -> str:
        """The whole way, from the value that is called `root`."""
        return render(root, self.trail[::-1])


class Refusal(Fault):
    """A value that cannot be written. `deep` when the bound on nesting was what stopped it."""

    def __init__(self, kind: type, reason: str, *, deep: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.reason = reason
        self.deep = deep
        self.owners: list[int] = []

    def within(self, step: Step, owner: object) -> Self:
        """As `inside`, noting which container it was, so that a cycle can be told from mere depth."""
        self.trail.append(step)
        self.owners.append(id(owner))
        return self

    def cycle(self, root: str) -> tuple[str, str] | None:
        """Where a container came up inside itself, as (outer path, inner path), or None."""
        seen: dict[int, int] = {}
        steps = self.trail[::-1]
        for depth, owner in enumerate(reversed(self.owners)):
            if owner in seen:
                return render(root, steps[: seen[owner]]), render(root, steps[:depth])
            seen[owner] = depth
        return None


class Misfit(Fault):
    """A JSON value that does not fit an annotation; `message` says what was expected and what was found."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message


def render(root: str, steps: Sequence[Step]) -> str:
    """`input.user["e-mail"][3]`: names as attributes, other keys as JSON strings, places by number."""
    if len(steps) <= _SHOWN_WHOLE:
        return root + "".join(map(_segment, steps))
    head = "".join(map(_segment, steps[:_SHOWN_HEAD]))
    tail = "".join(map(_segment, steps[-_SHOWN_TAIL:]))
    return f"{root}{head}.<{len(steps) - _SHOWN_HEAD - _SHOWN_TAIL} more>{tail}"


def _segment(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if len(step) > _KEY_SHOWN:
        step = step[:_KEY_SHOWN] + "..."
    elif step.isidentifier():
        return f".{step}"
    # Escaped to ASCII where it could not be printed: a lone surrogate must not break the message.
    return f"[{json.dumps(step, ensure_ascii=not step.isprintable())}]"


def type_name(kind: type) -> str:
    """A class by module and qualified name; builtins by name alone."""
    if kind.__module__ == "builtins":
        return "None" if kind is type(None) else kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
