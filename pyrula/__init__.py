"""Durable workflows on Valkey: plain async functions whose steps survive a crash.

This file holds the version and nothing else. It never imports a room of the package: whoever wants
`pyrula.contracts.errors` pays for that module alone. What a workflow author types is in
`pyrula.workflows`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
