"""Every benchmark, one after the other: `python -m benchmarks`, or those that are named.

Each prints its figures beside their yardsticks and what they are to reach.
"""

from __future__ import annotations

import runpy
import sys

# `tracing_cost` and `function_calls` explain the others; they have no target of their own.
ALL = ("bare_append", "engine", "inner_commands", "memory", "standing", "function_calls", "tracing_cost")


def main() -> int:
    """Run them; the exit status is 1 when one failed."""
    chosen = sys.argv[1:] or list(ALL)
    if unknown := [name for name in chosen if name not in ALL]:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    failed = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        sys.argv = [name]
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        except SystemExit as end:
            if end.code:
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
