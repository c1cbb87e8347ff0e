"""Structs that hold a password or another secret. Pure."""

from __future__ import annotations

import msgspec

SECRET = frozenset({"broker", "password", "secret", "users", "key", "client_key"})
"""Fields that nobody may read in a log."""


class Guarded(msgspec.Struct, frozen=True):
    """Its repr does not show the fields of SECRET: tracebacks and error messages show reprs."""

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'…' if name in SECRET and value else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"
