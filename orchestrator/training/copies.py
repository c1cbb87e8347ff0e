"""Copies of a method for the trainer's process: as it is before the server halves of a round are made, or a test.

A copy is a pickle that the orchestrator makes of an object of its own; nothing that a device sent is unpickled. The
context, which stays the same during a run and holds the whole model, is kept in the trainer's process and not copied
with every method.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from edgebed.errors import RunError
from edgebed.methods.base import Context, Method

CONTEXT, MODEL = "context", "model"

ATTEMPTS = 5
"""Where lanes overlap, a round may be merged while the method is copied for a test: a dictionary that grows meanwhile
is a RuntimeError, and the copy is made again."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, context: Context | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._context = context

    def persistent_id(self, it: Any) -> str | None:
        if self._context is None:
            return None
        return CONTEXT if it is self._context else MODEL if it is self._context.model else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, context: Context | None) -> None:
        super().__init__(file)
        self._context = context

    def persistent_load(self, name: str) -> Any:
        assert self._context is not None
        return self._context if name == CONTEXT else self._context.model


def copy_of(it: object, context: Context | None = None) -> Tensor:
    """A pickle as bytes of a tensor (uint8), without the context. Raises RunError: it holds something that cannot be
    copied."""
    for attempts_left in reversed(range(ATTEMPTS)):
        file = io.BytesIO()
        try:
            _Pickler(file, context).dump(it)
            break
        except Exception as error:  # whatever the pickling of an attribute raises
            if isinstance(error, RuntimeError) and attempts_left:
                continue
            raise RunError(
                f"{_name(it)} cannot be copied into the trainer's process: {type(error).__name__}: {error}",
                hint="keep plain data and tensors in a method: no functions, generators, locks or open files",
            ) from None
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def from_copy(copy: Tensor, context: Context | None = None) -> Any:
    """The object of a copy, with this context in the place of its own."""
    return _Unpickler(io.BytesIO(copy.numpy().data), context).load()


def _name(it: object) -> str:
    parts = it if isinstance(it, tuple) else (it,)
    named = next((part for part in parts if isinstance(part, Method)), None)
    return f"the method {named.name!r}" if named is not None else f"a {type(it).__name__}"
