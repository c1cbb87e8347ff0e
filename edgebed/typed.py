"""What a person wrote, as a typed struct; or a refusal that says where, what stands there, and what to write. Pure."""

from __future__ import annotations

import contextlib
import copy
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from edgebed.errors import UsageError

T = TypeVar("T")
Place = tuple[str | int, ...]
"""The way to a value: keys of mappings and numbers of list items."""

SHOWN = 60
"""Characters of a wrong value that a message repeats."""


def convert(
    data: Any,
    kind: type[T],
    where: Callable[[str], str],
    *,
    error: type[UsageError] = UsageError,
    words: Mapping[str, str] | None = None,
) -> T:
    """`data` as `kind`.

    Args:
        where: what a message says of a place such as `training.rounds` or `methods[0]`; "" is the whole.
        error: the class to raise.
        words: by key, what its value must be, in better words than its type gives.

    Raises:
        UsageError: a key or value that does not belong there; with place and hint.
    """
    refuse_not_finite(data, where)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as refused:
        message, hint = _Refusal(data, kind, str(refused), words or {}).told(where)
        raise error(message, hint=hint) from None


MOST_MISTAKES = 50
"""Mistakes of one file that are looked for."""


def mistakes(
    data: Any, kind: type[T], where: Callable[[str], str], words: Mapping[str, str] | None = None
) -> tuple[dict[Place, UsageError], T | None]:
    """Every mistake for which `convert` refuses `data`, by its place, and what is left without them: a wrong value
    becomes its default, or an example of its type. None: too little is left."""
    data, found, mended = copy.deepcopy(data), dict[Place, UsageError](), list[Place]()
    while len(mended) < MOST_MISTAKES:
        try:
            refuse_not_finite(data, where)
            return found, msgspec.convert(data, kind)
        except UsageError as error:
            return {**found, (len(found),): error}, None
        except msgspec.ValidationError as refused:
            refusal = _Refusal(data, kind, str(refused), words or {})
            place = refusal.culprit
            inside = next((each for each in reversed(mended) if place[: len(each)] == each), None)
            if inside is not None:  # what stands there instead does not fit either
                place = inside[:-1]
            elif not any(each[: len(place)] == place for each in mended):  # else it may be because of what was mended
                message, hint = refusal.told(where)
                found[place] = UsageError(message, hint=hint)
            if not place:
                break
            mended.append(place)
            holder, last = value_at(data, place[:-1]), place[-1]
            if isinstance(holder, dict) and last in holder and not _required(kind, place):
                del holder[last]
            else:
                holder[last] = _example(_resolve(None, inspect.type_info(kind), place)[1])
    return found, None


def _required(kind: Any, place: Place) -> bool:
    structs = _structs(_resolve(None, inspect.type_info(kind), place[:-1])[1])
    return any(field.required for struct in structs for field in struct.fields if field.encode_name == place[-1])


def _example(wanted: Any) -> Any:
    """A value of a type of `msgspec.inspect`, where its bounds allow a simple one."""
    match wanted:
        case inspect.UnionType(types):
            return _example(types[0])
        case inspect.IntType() | inspect.FloatType():
            return next((bound for bound in (wanted.ge, wanted.le) if bound is not None), 1)
        case inspect.LiteralType(values):
            return values[0]
        case inspect.ListType() | inspect.VarTupleType():
            return [_example(wanted.item_type)] * (wanted.min_length or 0)
        case inspect.StructType(fields=fields):
            return {field.encode_name: _example(field.type) for field in fields if field.required}
    return {"StrType": "x", "BoolType": False, "DictType": {}}.get(type(wanted).__name__)


def refuse_not_finite(data: Any, where: Callable[[str], str], place: Place = ()) -> None:
    """YAML has .nan and .inf; comparisons let NaN through every bound."""
    if isinstance(data, float) and not math.isfinite(data):
        raise UsageError(f"{where(spelled(place))} is {data}, which is no quantity", hint="write a finite number")
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        refuse_not_finite(value, where, (*place, key))


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """A UsageError from inside says the place, too."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{place}: {error}", hint=error.hint) from None


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    folded = {_folded(each): each for each in reversed(known)}
    close = difflib.get_close_matches(_folded(word), folded, 1, 0.6)
    stems = {_folded(each.split("_")[0]): each for each in reversed(known)}
    meant = folded[close[0]] if close else stems.get(_folded(word.split("_")[0]), "")
    return f"; did you mean {meant!r}?" if meant else ""


def _folded(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")


def spelled(place: Place) -> str:
    """`methods[0].name` for ("methods", 0, "name")."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(parts).lstrip(".")


def shown(value: Any) -> str:
    """A value in the words of the file, not too long."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list) and (not value or any(isinstance(each, dict | list) for each in value)):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


class _Refusal:
    """One complaint of msgspec, in words for people."""

    def __init__(self, data: Any, kind: Any, complaint: str, words: Mapping[str, str]) -> None:
        self._data, self._kind, self._words = data, kind, words
        self._text, _, path = complaint.partition(" - at ")
        self._place, self._type = _resolve(data, inspect.type_info(kind), _steps(path))

    @property
    def culprit(self) -> Place:
        """The place of the wrong value, or of the key that is not known or missing."""
        key = re.search(r"(?:contains unknown|missing required) field `(.*)`", self._text, re.DOTALL)
        return (*self._place, key[1]) if key else self._place

    def told(self, where: Callable[[str], str]) -> tuple[str, str]:
        """Message and hint."""
        unknown = re.search(r"contains unknown field `(.*)`", self._text, re.DOTALL)
        missing = re.search(r"missing required field `(.*)`", self._text)
        if unknown:
            return self._unknown(unknown[1], where)
        if missing:
            return self._missing(missing[1], where)
        place = where(spelled(self._place))
        if not re.match(r"Expected|Invalid|Number|Object", self._text):  # a struct's own check: "what; hint"
            what, _, hint = self._text.rpartition("; ")
            return f"{place}: {what or self._text}", hint or "change one of the two"
        value = value_at(self._data, self._place)
        message = f"{place} is {shown(value)}; it must be {self._wanted()}"
        return message, self._hint(value)

    def _unknown(self, key: str, where: Callable[[str], str]) -> tuple[str, str]:
        keys = [field.encode_name for struct in _structs(self._type) for field in struct.fields]
        message = f"{where(spelled((*self._place, key)))}: there is no key {key!r} here{nearest(key, keys)}"
        return message, f"known keys here: {', '.join(keys) or 'none'}"

    def _missing(self, key: str, where: Callable[[str], str]) -> tuple[str, str]:
        wanted = next(field.type for s in _structs(self._type) for field in s.fields if field.encode_name == key)
        message = f"{where(spelled(self._place))}: the key {key!r} is missing"
        return message, f"add `{key}: …`, {self._words.get(key) or described(wanted)}"

    def _wanted(self) -> str:
        key = next((step for step in reversed(self._place) if isinstance(step, str)), "")
        return self._words.get(key) or described(self._type)

    def _hint(self, value: Any) -> str:
        guesses = (*_alike(value, self._type), *_guesses(value))
        fitting = next((each for each in guesses if self._fits(each)), None)
        if fitting is not None:
            return f"write {written(fitting)}"
        default = None if isinstance(self._type, inspect.LiteralType) else _default(self._kind, self._place)
        return f"write {self._wanted()}" + (f", such as {written(default)}, the default" if default is not None else "")

    def _fits(self, candidate: Any) -> bool:
        data = copy.deepcopy(self._data)
        if not self._place:
            return False
        value_at(data, self._place[:-1])[self._place[-1]] = candidate
        try:
            msgspec.convert(data, self._kind)
        except msgspec.ValidationError as still:
            _, _, path = str(still).partition(" - at ")
            return _resolve(data, inspect.type_info(self._kind), _steps(path))[0] != self._place
        return True


def value_at(data: Any, place: Place) -> Any:
    for step in place:
        data = data[step]
    return data


def written(value: Any) -> str:
    """A value as YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return f"'{value}'" if re.fullmatch(r"[-+.0-9].*|true|false|null|", value) else value
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    return str(value)


def _alike(value: Any, wanted: Any) -> list[str]:
    """The word of those that may stand there that is most like `value`."""
    types = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    known = [str(each) for one in types if isinstance(one, inspect.LiteralType) for each in one.values]
    return difflib.get_close_matches(value, known, 1, 0.6) if isinstance(value, str) else []


def _guesses(value: Any) -> Iterator[Any]:
    """What may have been meant by a value of the wrong type or size."""
    if isinstance(value, bool):
        yield str(value).lower()
    elif isinstance(value, str):
        yield from _numbers(value)
        yield {"yes": True, "on": True, "no": False, "off": False, "none": None}.get(value.lower(), value)
        yield from (value.lower(), {"name": value})
    elif isinstance(value, int | float):
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            yield int(value)
        if 10 <= value <= 100:
            yield round(value / 100, 6)  # a percentage for a share
        yield from (bool(value),) if value in (0, 1) else ()
        yield written(value)
    if not isinstance(value, list):
        yield [value]


def _numbers(text: str) -> Iterator[int | float]:
    """Numbers in a text such as `1_000`, `0,5` or `90 %`. A unit says something else than the key's: no guess."""
    found = re.fullmatch(r"\s*([-+]?[\d_,.]+(?:[eE][-+]?\d+)?)\s*(%?)\s*", text[:SHOWN])
    if found:
        try:
            number = float(found[1].replace("_", "").replace(",", "."))
        except ValueError:
            return
        number = number / 100 if found[2] else number
        if math.isfinite(number):
            yield from (int(number), number) if number.is_integer() else (number,)


# ---- types in words --------------------------------------------------------------------------------------------------


def described(wanted: Any) -> str:
    """A type of `msgspec.inspect` in words."""
    match wanted:
        case inspect.UnionType(types):
            return " or ".join(described(each) for each in types)
        case inspect.IntType():
            return f"a whole number{_bounds(wanted)}"
        case inspect.FloatType():
            return f"a number{_bounds(wanted)}"
        case inspect.LiteralType(values):
            return f"one of: {', '.join(map(str, values))}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of at least {wanted.min_length}" if wanted.min_length else "a list, as in [a, b]"
        case inspect.TupleType(item_types):
            return f"a list of {len(item_types)}"
        case inspect.DictType() | inspect.StructType():
            return "keys with values, as in {key: value}"
    return {"BoolType": "true or false", "StrType": "text", "NoneType": "null"}.get(type(wanted).__name__, "a value")


def _bounds(wanted: inspect.IntType | inspect.FloatType) -> str:
    if wanted.ge is not None and wanted.le is not None:
        return f" from {_figure(wanted.ge)} to {_figure(wanted.le)}"
    parts = ((wanted.gt, "above"), (wanted.ge, "of at least"), (wanted.lt, "below"), (wanted.le, "at most"))
    said = [f"{word} {_figure(bound)}" for bound, word in parts if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _figure(bound: float) -> str:
    return f"{bound:.0f}" if float(bound).is_integer() else f"{bound:g}"


def _structs(wanted: Any) -> list[inspect.StructType]:
    each = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    return [one for one in each if isinstance(one, inspect.StructType)]


def _default(kind: Any, place: Place) -> Any:
    """The plain default of the field at `place`; None where it has none."""
    if not place or not isinstance(place[-1], str):
        return None
    _, holder = _resolve(None, inspect.type_info(kind), [*place[:-1]])
    for struct in _structs(holder):
        for field in struct.fields:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            if field.encode_name == place[-1] and isinstance(default, str | int | float | list) and default != "":
                return default
    return None


# ---- places ----------------------------------------------------------------------------------------------------------


def _steps(path: str) -> list[str | int | None]:
    """The steps of a place as msgspec writes it, `$.devices[0].count`; None for `[...]`, some key of a mapping."""
    path = path.replace("`key` in ", "").strip("`").removeprefix("$")
    found = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]", path)
    return [int(number) if number else key or None for key, number in found]


def _resolve(data: Any, wanted: Any, steps: Sequence[str | int | None]) -> tuple[Place, Any]:
    """The place with every key named as far as it can be told, and its type."""
    place: Place = ()
    for step in steps:
        options = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
        inner = next(filter(None, (_inner(each, step) for each in options)), None)
        if step is None and inner is not None:
            step = _culprit(data, inner)
        if inner is None or step is None:
            break
        place, wanted = (*place, step), inner
        data = data[step] if data is not None else None
    return place, wanted


def _inner(holder: Any, step: str | int | None) -> Any:
    match holder:
        case inspect.StructType(fields=fields):
            return next((field.type for field in fields if field.encode_name == step), None)
        case inspect.DictType(value_type=inner):
            return inner
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return inner
        case inspect.TupleType(item_types=items) if isinstance(step, int) and step < len(items):
            return items[step]
    return None


def _culprit(data: Any, wanted: Any) -> str | None:
    """The key of the first value in `data` that is not as wanted; None where that cannot be told."""
    structs = _structs(wanted)
    if isinstance(wanted, inspect.ListType) and isinstance(data, dict):
        least = wanted.min_length or 0
        return next((key for key, value in data.items() if not isinstance(value, list) or len(value) < least), None)
    for key, value in data.items() if isinstance(data, dict) and structs else ():
        try:
            msgspec.convert(value, structs[0].cls)
        except msgspec.ValidationError:
            return str(key)
    return None
