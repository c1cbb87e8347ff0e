"""YAML 1.2 files of settings. Reading keeps the line of every key; a written file reads back as the same values.

Types are those of YAML 1.2's core schema: `1e-3` is a number; `yes`, `no`, `on`, `off`, `1_000`, `1:30` and dates are
text; `010` is ten. Keys are always text. A mapping with the same key twice is refused. Anchors and aliases work; merge
keys (`<<`) and language-specific tags do not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import yaml

from edgebed import typed
from edgebed.errors import UsageError, refuse
from edgebed.typed import Place, spelled

T = TypeVar("T")

MOST_BYTES = 2**20
MOST_VALUES = 100_000
"""Largest number of values in a file, with aliases expanded: a few lines of aliases can stand for billions."""

CORE: dict[str, tuple[str, str]] = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": ("~|null|Null|NULL|", "~nN\0"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
"""Type, pattern and first characters of plain scalars. A pattern is tried only if the text begins with one of them."""

TAG = "tag:yaml.org,2002:"
KINDS = {*CORE, "str", "!", "map", "seq"}


class Document(dict[str, Any]):
    """The mapping in a file. `lines` says where each value comes from, by its place (`training.rounds`): a line, or the
    command-line option that set it."""

    def __init__(self, values: dict[str, Any], path: Path, lines: dict[str, str]) -> None:
        super().__init__(values)
        self.path, self.lines = path, lines

    def where(self, place: str) -> str:
        """`experiment.yaml:7: training.rounds`, for messages. A missing key has the line of its mapping."""
        line, around = self.lines.get(place), place
        while line is None and around:
            around = around[: max(around.rfind("."), around.rfind("["), 0)]
            line = self.lines.get(around)
        return f"{self.path}{line or ''}{f': {place}' if place else ''}"

    def put(self, keys: list[str], text: str, option: str) -> None:
        """Set a value from the command line, written in YAML. Raises UsageError."""
        value, lines = parse(text, Path(option), keys=tuple(keys))
        self.put_value(keys, value, option, lines)

    def put_value(self, keys: list[str], value: Any, option: str, places: Iterable[str] = ()) -> None:
        """Set a value. Messages about it, and about the `places` inside it, name `option`. Raises UsageError."""
        inner: dict[str, Any] = self
        for key in keys[:-1]:
            if inner.get(key) is None:
                inner[key] = {}
            inner = inner[key]
            if not isinstance(inner, dict):
                raise UsageError(f"{option}: {key} is not a mapping of keys", hint="name a key of the experiment file")
        inner[keys[-1]] = value
        own = ".".join(keys)
        self.lines = {p: line for p, line in self.lines.items() if not re.match(rf"{re.escape(own)}($|[.\[])", p)}
        self.lines |= dict.fromkeys((own, *places), f", {option}")


def convert(data: Any, kind: type[T], path: Path, words: Mapping[str, str] | None = None) -> T:
    """Convert `data`, read from the file `path`, to `kind`. Raises UsageError with all mistakes (`typed.mistakes`)."""
    found, value = mistakes(data, kind, path, words)
    refuse(list(found.values()), path)
    assert value is not None
    return value


def mistakes(
    data: Any, kind: type[T], path: Path, words: Mapping[str, str] | None = None
) -> tuple[dict[Place, UsageError], T | None]:
    """As `typed.mistakes`, of what was read from the file `path`."""

    def where(place: str) -> str:
        return f"{path}{f': {place}' if place else ''}"

    return typed.mistakes(data, kind, data.where if isinstance(data, Document) else where, words)


def plain(value: Any, place: Place = ()) -> Any:
    """A value that a program made, as YAML holds it: mappings, lists, text, numbers, true and false, null.

    Tuples become lists, paths become text, and numpy's scalars become Python's numbers. Raises UsageError: a value of
    another type, or a key that is no text; with its place.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{spelled(place) or 'experiment'}: the key {key!r} is no text", hint=f"write '{key}'")
        return {key: plain(inner, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, (*place, number)) for number, inner in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise UsageError(
        f"{spelled(place)} is a {type(value).__name__}, which no experiment file can hold",
        hint="give text, a number, True, False, None, a list or a dict",
    )


class _Loader(yaml.SafeLoader):
    """Reads without the type rules of YAML 1.1."""


_Loader.yaml_implicit_resolvers = {}


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2 or 1.1 would read as another type."""


for _name, (_pattern, _first) in CORE.items():
    for _side in (_Loader, _Dumper):
        _characters = ["" if each == "\0" else each for each in _first]
        _side.add_implicit_resolver(f"{TAG}{_name}", re.compile(f"^(?:{_pattern})$"), _characters)


def load_yaml(path: Path) -> Document:
    """The mapping in a YAML file.

    Raises:
        UsageError: the file cannot be read, is not YAML, or is not a mapping; with file, line and hint.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {why}", hint="give the path of an existing YAML file") from None
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path}: more than {MOST_BYTES:,} bytes", hint="give a file of settings, not of data")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not YAML: not UTF-8", hint="save the file as UTF-8 text") from None
    values, lines = parse(text, path)
    if not isinstance(values, dict):
        raise UsageError(
            f"{path}: is not a mapping of keys to values",
            hint="write `key: value` lines; `edgebed init DIR` writes examples",
        )
    return Document(values, path, lines)


def parse(text: str, path: Path, keys: Place = ()) -> tuple[Any, dict[str, str]]:
    """Parse a YAML text. Returns its value, and the line of everything in it.

    Args:
        path: for messages.
        keys: the keys under which the value will be stored in its file.

    Raises:
        UsageError: not YAML, or a key twice; with line and hint.
    """
    builder = _Builder(path)
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else builder.value(node, keys, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(
            f"{path}{line}: not YAML: {error.problem or error.context}", hint="correct the file at that line"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UsageError(f"{path}: not YAML: {why}", hint="correct the file") from None
    return value, builder.lines


def write_yaml(value: Any) -> bytes:
    """YAML that both YAML 1.2 and 1.1 read back as the same value. Keys keep their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()


class _Builder:
    """Builds values from YAML nodes, and notes their lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self.lines: dict[str, str] = {}

    def value(self, node: yaml.Node, place: Place, above: tuple[int, ...]) -> Any:
        self._count += 1
        if self._count > MOST_VALUES or id(node) in above:
            why = "an alias contains itself" if id(node) in above else f"more than {MOST_VALUES:,} values"
            raise self._refused(node, why, "write fewer aliases (`*name`)")
        self.lines[spelled(place)] = f":{node.start_mark.line + 1}"
        if node.tag.removeprefix(TAG) not in KINDS:
            raise self._refused(node, f"the tag {node.tag[:40]!r} is not known", "write the value without a tag")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place, (*above, id(node)))
        if isinstance(node, yaml.SequenceNode):
            inside = (*above, id(node))
            return [self.value(item, (*place, number), inside) for number, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, place: Place, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refused(key, "a key is not a plain word", "write `key: value`")
            name = self._text(key)
            if name in result:
                first = self.lines[spelled((*place, name))].lstrip(":")
                raise self._refused(
                    key, f"the key {name!r} appears again; it appears first on line {first}", "delete one of the two"
                )
            result[name] = self.value(inner, (*place, name), above)
            self.lines[spelled((*place, name))] = f":{key.start_mark.line + 1}"
        return result

    def _scalar(self, node: yaml.Node) -> Any:
        text, kind = self._text(node), node.tag.removeprefix(TAG)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text[2:], {"0o": 8, "0x": 16}[text[:2]]) if text[:2] in ("0o", "0x") else int(text)
            if kind == "float":
                return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
        except (ValueError, KeyError):
            raise self._refused(node, f"{text[:40]!r} is not a valid {kind}", "write a shorter number") from None
        return text

    def _text(self, node: yaml.Node) -> str:
        text = str(node.value)
        if any(unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t" for each in text):
            raise self._refused(node, "a control character in a text", "write the text without it")
        return text

    def _refused(self, node: yaml.Node, why: str, hint: str) -> UsageError:
        return UsageError(f"{self._path}:{node.start_mark.line + 1}: {why}", hint=hint)
