"""How models, methods and data sets are found and given their options.

A plugin package (for example `edgebed.methods`) holds one module per plugin, or one for a few closely related plugins.
A plugin is a class derived from the package's base, with a `name` and an `Options` struct (msgspec) whose fields are
its options. A new file in the package's folder is found by itself; there is no list to extend.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from edgebed.errors import PluginError
from edgebed.typed import convert, nearest


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a plugin without options."""


class Plugin:
    """Base of every plugin. Subclasses set `name`, may set `Options`, and read `self.options`."""

    name: ClassVar[str] = ""
    Options: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options if options is not None else type(self).Options()


P = TypeVar("P", bound=Plugin)


class Registry(Generic[P]):
    """The plugins of one package, by name.

    Args:
        package: the package whose modules are searched.
        base: the class every plugin derives from.
        kind: the word for messages ("method", "model", "data set").
    """

    def __init__(self, package: ModuleType, base: type[P], kind: str) -> None:
        self._package, self._base, self._kind = package, base, kind
        self._classes: dict[str, type[P]] | None = None

    def classes(self) -> dict[str, type[P]]:
        """All plugin classes by name, sorted. Raises PluginError when two files claim one name."""
        if self._classes is None:
            found: dict[str, type[P]] = {}
            for info in pkgutil.iter_modules(self._package.__path__):
                module = importlib.import_module(f"{self._package.__name__}.{info.name}")
                for cls in vars(module).values():
                    if self._is_plugin(cls) and cls.__module__ == module.__name__:
                        if cls.name in found:
                            raise PluginError(f"two {self._kind}s are called {cls.name!r}: {found[cls.name]} and {cls}")
                        found[cls.name] = cls
            self._classes = dict(sorted(found.items()))
        return self._classes

    def names(self) -> list[str]:
        return list(self.classes())

    def create(self, spec: Mapping[str, Any], place: str = "") -> P:
        """Build the plugin that `spec` names: `{"name": "dtfl", "tiers": 7}`.

        Args:
            spec: `name` and the options beside it.
            place: where the spec stands (file and key), for messages.

        Raises:
            PluginError: unknown name, unknown option, or an option of the wrong type or value.
        """
        where = f"{place}: " if place else ""
        options = dict(spec)
        name = options.pop("name", None)
        cls = self.classes().get(str(name))
        if cls is None:
            raise PluginError(
                f"{where}there is no {self._kind} {name!r}{nearest(str(name), self.names())}",
                hint=f"choose one of: {', '.join(self.names())}",
            )

        def here(inner: str) -> str:
            return f"{where}{self._kind} {name!r}{f': {inner}' if inner else ''}"

        return cls(convert(options, cls.Options, here, error=PluginError))

    def _is_plugin(self, cls: object) -> bool:
        return isinstance(cls, type) and issubclass(cls, self._base) and cls is not self._base and bool(cls.name)
