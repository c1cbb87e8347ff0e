"""What the orchestrator and the edge agents must agree on: messages, links, models, methods, data sets.

The package also hands on the orchestrator's Python API: `edgebed.run`, `edgebed.simulate`, `edgebed.load_run`,
`edgebed.load_runs`, `edgebed.compare` (docs/python.md). It is loaded when one of them is first used, so that an agent
never loads it.
"""

from __future__ import annotations

import importlib
from typing import Any

from edgebed.wire.protocol import PROTOCOL as PROTOCOL

API = ("compare", "load_run", "load_runs", "run", "simulate")
"""Names that are handed on from `orchestrator.api`."""


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module 'edgebed' has no attribute {name!r}")
    from edgebed.entry import check_packages
    from edgebed.errors import UsageError

    try:
        check_packages("orchestrator", "edge_agent")
        api = importlib.import_module("orchestrator.api")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"edgebed.{name} needs the package {error.name!r}, which is not installed\n"
            "Hint: pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'"
        ) from error
    except UsageError as error:
        raise ImportError(f"{error}\nHint: {error.hint}") from None
    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *API])
