"""The `@workflow` decorator and the process's registry of workflows. Nothing here runs one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property, update_wrapper
from typing import Any, overload

from pyrula.contracts.errors import ConfigurationError
from pyrula.contracts.ids import check_workflow_name
from pyrula.contracts.options import Retry
from pyrula.contracts.triggers import Batch, On, Trigger
from pyrula.contracts.values import InputSpec

__all__ = ["Registry", "Workflow", "registry", "workflow"]

BodyFunction = Callable[..., Coroutine[Any, Any, Any]]


class Workflow:
    """A registered workflow. Calling it calls the body, so that a body can be tested with a stand-in context."""

    def __init__(
        self,
        fn: BodyFunction,
        *,
        name: str,
        version: str | None,
        timeout: float | None,
        retry: Retry | None,
        triggers: Sequence[On | Batch] = (),
    ) -> None:
        self.fn = fn
        self.name = name
        self.version = version
        self.timeout = timeout
        self.retry = retry
        self.triggers = Trigger.all_of(name, triggers)
        update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"

    @cached_property
    def spec(self) -> InputSpec:
        """Its parameters and result, read off the annotations when first needed."""
        return InputSpec.of(self.fn, workflow=self.name)

    @property
    def origin(self) -> tuple[str, int]:
        """Where the body is defined: file and line."""
        code = self.fn.__code__
        return code.co_filename, code.co_firstlineno


class Registry:
    """Workflows by name."""

    def __init__(self) -> None:
        self._workflows: dict[str, Workflow] = {}

    def add(self, item: Workflow) -> None:
        """Register one. A second definition from the same place (a reload) replaces the first."""
        known = self._workflows.get(item.name)
        if known is not None and known.origin != item.origin:
            here, there = (f"{path}:{line}" for path, line in (item.origin, known.origin))
            raise ConfigurationError(
                f"two functions are registered as workflow {item.name!r}: {there} and {here}; give one another name"
            )
        self._workflows[item.name] = item

    def get(self, name: str) -> Workflow | None:
        """The workflow of that name, if this process knows it."""
        return self._workflows.get(name)

    def all(self) -> list[Workflow]:
        """Every registered workflow, by name."""
        return [self._workflows[name] for name in sorted(self._workflows)]

    def select(self, chosen: Iterable[Workflow | str] | None) -> dict[str, Workflow]:
        """The chosen workflows (all, for None) by name, as they are registered now."""
        if chosen is None:
            return dict(self._workflows)
        selected: dict[str, Workflow] = {}
        for item in chosen:
            found = self.get(item) if isinstance(item, str) else item
            if not isinstance(found, Workflow):
                raise ConfigurationError(
                    f"{item!r} is not a workflow; import its module, and decorate it with @workflow"
                )
            selected[found.name] = found
        return selected


registry = Registry()


@overload
def workflow(fn: BodyFunction, /) -> Workflow: ...


@overload
def workflow(
    name: str | None = None,
    *,
    version: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    flow: None = None,
    triggers: Sequence[On | Batch] = (),
) -> Callable[[BodyFunction], Workflow]: ...


def workflow(
    name: str | BodyFunction | None = None,
    *,
    version: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    flow: None = None,
    triggers: Sequence[On | Batch] = (),
) -> Workflow | Callable[[BodyFunction], Workflow]:
    """Make an `async def fn(ctx, **inputs)` a workflow.

    name: by default the function's.
    version: recorded with each run.
    timeout: seconds that one attempt of the body may take.
    retry: how a run that failed as a whole is tried again.
    triggers: `On(...)` and `Batch(...)`, which start runs by application events.

    Raises `ConfigurationError` for a function that is not `async def fn(ctx, ...)`, for two
    functions under one name, and for options that this version does not have.
    """
    if flow is not None:
        raise ConfigurationError("this version of pyrula has no flow= yet")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(f"timeout={timeout!r}: a number of seconds greater than 0 is needed")

    def decorate(fn: BodyFunction) -> Workflow:
        if not inspect.iscoroutinefunction(fn):
            raise ConfigurationError(
                f"{getattr(fn, '__qualname__', fn)!r} is not an async def; a workflow's body must be one"
            )
        called = name if isinstance(name, str) else fn.__name__
        made = Workflow(
            fn, name=check_workflow_name(called), version=version, timeout=timeout, retry=retry, triggers=triggers
        )
        registry.add(made)
        return made

    if callable(name):
        return decorate(name)
    return decorate
