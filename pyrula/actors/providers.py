"""The application's OpenTelemetry providers: whether it has set any, at next to no cost while it has not.

Knows nothing of spans and metrics. The API's own getters look into the process's environment on every
call, which costs more than all that a run without tracing has to pay for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

__all__ = ["Provided"]

T = TypeVar("T")
_UNKNOWN: Final = object()


class Provided(Generic[T]):
    """What is made of a global provider, once for each provider that is set; None while there is none.

    get: the API's getter. variable: the name under which its module keeps the provider (should a release
        keep it elsewhere, the getter itself is called). selector: the environment variable that names a
        provider to be loaded. make: gives None for a provider that does nothing.
    """

    __slots__ = ("_get", "_made", "_make", "_names", "_provider", "_selected", "_variable")

    def __init__(
        self, get: Callable[[], Any], *, variable: str, selector: str, make: Callable[[Any], T | None]
    ) -> None:
        self._get = get
        self._names: dict[str, Any] = getattr(get, "__globals__", {})
        self._variable = variable
        self._selected = selector in os.environ
        self._make = make
        self._provider: Any = None
        self._made: T | None = None

    def now(self) -> T | None:
        """Asked again each time, so that a provider may be set late, or replaced."""
        provider = self._names.get(self._variable, _UNKNOWN)
        if provider is None:
            if not self._selected:
                return None
            provider = self._get()
        elif provider is _UNKNOWN:
            provider = self._get()
        if provider is not self._provider:
            self._made = self._make(provider)
            self._provider = provider
        return self._made
