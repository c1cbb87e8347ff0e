"""Writes a run in the formats of other tools, from its records alone. One module per format."""

from __future__ import annotations

import importlib
from typing import Any

from edgebed.errors import UsageError


def load(module: str, wanted: str, extra: str = "export") -> Any:
    """The module. Raises UsageError if it is not installed. `wanted`: what needs it, for the message; `extra`: of our
    package, that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install './edgebed-VERSION-py3-none-any.whl[{extra}]'"
        raise UsageError(f"{wanted} needs {module.partition('.')[0]}: {error}", hint=hint) from None
