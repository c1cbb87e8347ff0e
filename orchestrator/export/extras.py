"""Loads a package that only one format needs, or says how to get it."""

from __future__ import annotations

import importlib
from typing import Any

from edgebed.errors import UsageError


def load(module: str, wanted: str) -> Any:
    """The module. Raises UsageError where it is not installed; `wanted`: what it is for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = "pip install 'edgebed[export]'"
        raise UsageError(f"{wanted} needs {module.partition('.')[0]}: {error}", hint=hint) from None
