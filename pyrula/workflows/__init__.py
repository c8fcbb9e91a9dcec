"""Everything that a workflow author or an operator of workers types."""

from pyrula.contracts.errors import NonRetryable
from pyrula.contracts.events import Event
from pyrula.contracts.options import Retry, WorkerOptions
from pyrula.contracts.runs import Page, Run, RunStatus
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.context import Context
from pyrula.workflows.inline import InlineWorkflowRunner
from pyrula.workflows.registry import Workflow, workflow
from pyrula.workflows.stores.memory import MemoryStore
from pyrula.workflows.stores.valkey.store import ValkeyStore
from pyrula.workflows.triggers import Batch, On
from pyrula.workflows.worker import WorkflowWorker

__all__ = [
    "Batch",
    "Context",
    "Event",
    "InlineWorkflowRunner",
    "MemoryStore",
    "NonRetryable",
    "On",
    "Page",
    "Retry",
    "Run",
    "RunStatus",
    "ValkeyStore",
    "WorkerOptions",
    "Workflow",
    "WorkflowClient",
    "WorkflowWorker",
    "workflow",
]
