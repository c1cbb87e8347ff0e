"""How models, methods and data sets are found and given their options.

A plugin package (for example `edgebed.methods`) holds one module per plugin, or one for a few closely related plugins.
A plugin is a class derived from the package's base, with a `name` and an `Options` struct (msgspec) whose fields are
its options. A new file in the package's folder is found by itself; there is no list to extend. So are the classes of
the plug-ins that this process uses (`edgebed.plugin_code`), and what installed packages offer as entry points.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from edgebed import plugin_code
from edgebed.errors import PluginError, UsageError
from edgebed.typed import convert, mistakes, nearest


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a plugin without options."""


class Plugin:
    """Base of every plugin. Subclasses set `name`, may set `Options`, and read `self.options`."""

    name: str = ""
    key: ClassVar[str] = ""
    """The option by which it is chosen, of a plugin without a name."""
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
        self._unnamed: dict[str, type[P]] = {}

    def built_in(self) -> dict[str, type[P]]:
        """The classes of the package by name, sorted. Raises PluginError when two files claim one name."""
        if self._classes is None:
            modules = [f"{self._package.__name__}.{each.name}" for each in pkgutil.iter_modules(self._package.__path__)]
            found: dict[str, type[P]] = {}
            for module in modules:
                every = vars(importlib.import_module(module)).values()
                self._add(found, (cls for cls in every if isinstance(cls, type) and cls.__module__ == module))
            self._classes = dict(sorted(found.items()))
        return self._classes

    def classes(self) -> dict[str, type[P]]:
        """Those built in, then those of plug-ins in use. Raises PluginError when two claim one name."""
        found = dict(self.built_in())
        for code in plugin_code.LOADED.values():
            self._add(found, plugin_code.classes_of(code))
        return found

    def _add(self, found: dict[str, type[P]], classes: Iterable[Any]) -> None:
        for cls in classes:
            if not issubclass(cls, self._base) or cls is self._base:
                continue
            if cls.key:
                self._unnamed[cls.key] = cls
            elif cls.name and found.setdefault(cls.name, cls) is not cls:
                raise PluginError(
                    f"two {self._kind}s are called {cls.name!r}: {found[cls.name]} and {cls}",
                    hint="give one of them another `name`",
                )

    def unnamed(self) -> dict[str, type[P]]:
        """The classes that an option chooses, by that option."""
        self.built_in()
        return self._unnamed

    def class_of(self, spec: Mapping[str, Any]) -> type[P] | None:
        """The class that `spec` chooses, by its name or by an option."""
        if "name" not in spec:
            return next((cls for key, cls in self.unnamed().items() if key in spec), None)
        name = str(spec["name"])
        return self.classes().get(name) or self._installed(name)

    def names(self) -> list[str]:
        return list(self.classes())

    def create(self, spec: Mapping[str, Any], place: str = "") -> P:
        """Build the plugin that `spec` names: `{"name": "dtfl", "tiers": 7}`.

        Args:
            spec: `name` and the options beside it, or the options of a plugin without a name.
            place: where the spec stands (file and key), for messages.

        Raises:
            PluginError: unknown name, unknown option, or an option of the wrong type or value.
        """
        where = f"{place}: " if place else ""
        options = dict(spec)
        name, cls = options.pop("name", None), self.class_of(spec)
        if cls is None:
            known = [*self.names(), *(point.name for point in self._points())]
            raise PluginError(
                f"{where}there is no {self._kind} {name!r}{nearest(str(name), known)}",
                hint=f"choose one of: {', '.join(dict.fromkeys(known))}; or name your own file with --plugin",
            )

        def here(inner: str) -> str:
            named = f" {name!r}" if name else ""
            return f"{where}{self._kind}{named}{f': {inner}' if inner else ''}"

        return cls(convert(options, cls.Options, here, error=PluginError))

    def mistakes(self, spec: Mapping[str, Any], where: Callable[[str], str], place: str) -> Sequence[UsageError]:
        """All that is wrong with the spec at `place`; `where` says in words where a key is."""
        try:
            self.create(spec, where(place))
        except UsageError as error:
            cls = self.class_of(spec)
            options = {key: value for key, value in spec.items() if key != "name"}
            found = mistakes(options, cls.Options, lambda key: where(f"{place}.{key}"))[0] if cls else {}
            return list(found.values()) if len(found) > 1 else [error]
        return ()

    def _installed(self, name: str) -> type[P] | None:
        """The class that an installed package offers under this name; the package is in use from now on."""
        packages = [point.module.partition(".")[0] for point in self._points() if point.name == name]
        plugin_code.use([plugin_code.read_installed(package) for package in packages])
        return self.classes().get(name)

    def _points(self) -> list[EntryPoint]:
        return [point for point in plugin_code.offered() if point.group == self._package.__name__]


def called(spec: Mapping[str, Any]) -> str:
    """What an experiment chooses, in words: also a network of a file or of torchvision (`edgebed.models.network`)."""
    own = f"{spec.get('class')} of {spec.get('file')}" if "file" in spec else ""
    return str(spec.get("name") or spec.get("torchvision") or own)
