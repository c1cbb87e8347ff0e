"""The code of a plug-in: a file, a folder or an installed package with methods, models or data sets, from outside
Edgebed's tree.

A plug-in is read once. Its modules are made of the bytes that were read then, and copies of these bytes go to the
run's folder, the trainer's process and the devices: all of them run the same code, whatever happens to the files.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import stat
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib import machinery, metadata
from pathlib import Path
from types import CodeType, ModuleType

import msgspec

from edgebed.errors import FileError, PluginError, in_words

GROUPS = ("edgebed.methods", "edgebed.models", "edgebed.datasets")
"""Of the entry points by which an installed package offers classes; each name is that of a class."""

MANIFEST = "plugins.json"
MOST_BYTES = 64 << 20


class Told(msgspec.Struct, frozen=True):
    """What the manifest beside copies says of one of them."""

    sha256: str
    source: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...] = ()


class PluginCode(msgspec.Struct, frozen=True):
    """A plug-in as it was read."""

    name: str  # of its top-level module
    folder: str  # in which the file or the package stands
    files: Mapping[str, bytes]  # their bytes by path below `folder`: `mine.py`, or `mine/__init__.py` and all beside it
    # its hash, where it was first read, the modules to import, and the packages it needs (as pip names them)
    told: Told

    @property
    def entry(self) -> str:
        """The file or folder below `folder`."""
        return next(iter(self.files)).partition("/")[0]

    @property
    def sha256(self) -> str:
        return self.told.sha256


def sha256_of(files: Mapping[str, bytes]) -> str:
    """Of the names and bytes of files."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


# ---- reading and copying ----


def read_plugin(what: str, near: Path = Path()) -> PluginCode:
    """The plug-in at a path, which may start in the folder `near`, or the installed package of that name. Raises
    PluginError: there is none, or it is none."""
    path = Path(os.path.abspath(near / what))
    if not path.is_file() and not (path / "__init__.py").is_file():
        path = _installed(what, path)
    name = path.stem if path.is_file() else path.name
    if not name.isidentifier() or (path.is_file() and path.suffix != ".py"):
        raise PluginError(
            f"{path} is no plug-in: {path.name} is no name of a Python module",
            hint="a plug-in is a file such as my_method.py, or a folder with an __init__.py; letters, digits and '_'",
        )
    files = _files(path)
    told = _told(path)
    sha256 = sha256_of(files)
    if told is not None:
        if told.sha256 != sha256:
            raise PluginError(
                f"{path} has been changed: it is a run's copy of {told.source}",
                hint="a run goes on with the code that it began with; start a new run with --plugin for other code",
            )
        return PluginCode(name, str(path.parent), files, told)
    return PluginCode(name, str(path.parent), files, Told(sha256, str(path), *_of_installation(name, path, files)))


def read_installed(package: str) -> PluginCode:
    """The plug-in that is an installed package, or module. Raises PluginError."""
    return read_plugin(str(_installed(package, Path(package))))


def read_plugins(folder: Path) -> list[PluginCode]:
    """The copies that `write_plugins` has put there. Raises PluginError."""
    return [read_plugin(entry, folder) for entry in _manifest(folder)]


def write_plugins(codes: Iterable[PluginCode], folder: Path) -> None:
    """Put copies, and a manifest, into `folder`, where every user may read them. Raises FileError."""
    told = {code.entry: code.told for code in codes}
    files = {name: data for code in codes for name, data in code.files.items()}
    try:
        for name, data in {**files, MANIFEST: msgspec.json.format(msgspec.json.encode(told))}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o644)
        for made in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
            made.chmod(0o755)
    except OSError as error:
        raise FileError.of(error, folder) from None


def _told(path: Path) -> Told | None:
    """What the manifest beside a plug-in says of it. One of another user says nothing: in a folder such as /tmp he
    could have other modules imported with the plug-in, and other packages installed."""
    try:
        manifest = (path.parent / MANIFEST).lstat()
    except FileNotFoundError:
        return None
    own = stat.S_ISREG(manifest.st_mode) and manifest.st_uid == path.lstat().st_uid
    return _manifest(path.parent).get(path.name) if own else None


def _manifest(folder: Path) -> dict[str, Told]:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, Told])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise PluginError(f"{folder / MANIFEST} cannot be used: {error}") from None


def _files(path: Path) -> dict[str, bytes]:
    """Of a plug-in, by path below the folder it stands in; no caches, and nothing that is hidden."""
    found, size = {}, 0
    try:
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            name = each.relative_to(path.parent)
            if each.is_file() and not any(part[0] == "." or part == "__pycache__" for part in name.parts[1:]):
                size += each.stat().st_size
                if size > MOST_BYTES:
                    raise PluginError(
                        f"the plug-in {path} has more than {MOST_BYTES >> 20} MiB",
                        hint="every device gets a copy: keep data sets elsewhere, and read them by an option `path`",
                    )
                found[name.as_posix()] = each.read_bytes()
    except OSError as error:
        raise FileError.of(error, path) from None
    return found


def _installed(what: str, path: Path) -> Path:
    """Where the installed package, or module, of this name stands."""
    spec = importlib.util.find_spec(what) if what.isidentifier() else None
    if spec is not None and spec.origin and spec.has_location:
        return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    if path.is_dir():
        raise PluginError(
            f"the folder {path} is no plug-in: it has no __init__.py",
            hint="give one of its files, or add an __init__.py that imports the classes",
        )
    raise PluginError(
        f"there is no plug-in {what!r}: neither the file {path} nor an installed package",
        hint="give a file, a folder with an __init__.py, or the name of a package that pip has installed",
    )


def offered(name: str = "") -> list[metadata.EntryPoint]:
    """Entry points of installed packages: all of them, or those of the package `name`."""
    found = [each for group in GROUPS for each in metadata.entry_points(group=group)]
    return [each for each in found if not name or each.module.partition(".")[0] == name]


def _of_installation(name: str, path: Path, files: Mapping[str, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules to import, and packages it needs: as the package's installation says, or the files themselves."""
    spec = importlib.util.find_spec(name)
    here = spec is not None and spec.origin is not None and Path(spec.origin) in (path, path / "__init__.py")
    points = offered(name) if here else []
    if points:
        needs = [need for point in points if point.dist is not None for need in point.dist.requires or ()]
        return tuple(sorted({name, *(point.module for point in points)})), _needed(needs)
    lines = files.get(f"{name}/requirements.txt", b"").decode(errors="replace").splitlines()
    return (name,), _needed([line.partition("#")[0] for line in lines])


def _needed(requirements: Iterable[str]) -> tuple[str, ...]:
    """Without empty lines, options of pip, extras, and Edgebed itself: an index may have a stranger's of this name."""
    texts = dict.fromkeys(each.strip() for each in requirements)
    named = [(t, re.match(r"\w[\w.-]*", t)) for t in texts if t.isprintable() and not re.search(r";.*\bextra\b", t)]
    return tuple(text for text, name in named if name and name[0].lower() != "edgebed")


# ---- importing ----


LOADED: dict[str, PluginCode] = {}
"""The plug-ins that this process uses, by name."""


class _SourceAsRead(machinery.SourceFileLoader):
    """Takes a module's source as it was read, and no bytecode beside it, which may be older."""

    def get_code(self, fullname: str) -> CodeType:
        code, path = LOADED[fullname.partition(".")[0]], self.get_filename(fullname)
        name = Path(path).relative_to(code.folder).as_posix()
        source: CodeType = self.source_to_code(code.files[name], path)
        return source


class _Finder:
    """Finds the modules of plug-ins among the files that were read, and no others; a finder of `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        code, place = LOADED.get(name.partition(".")[0]), name.replace(".", "/")
        if code is None:
            return None
        for file, inside in ((f"{place}/__init__.py", [f"{code.folder}/{place}"]), (f"{place}.py", None)):
            if file in code.files:
                loader = _SourceAsRead(name, f"{code.folder}/{file}")
                return importlib.util.spec_from_file_location(name, loader=loader, submodule_search_locations=inside)
        if any(file.startswith(f"{place}/") for file in code.files):  # a folder without __init__.py
            spec = machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [f"{code.folder}/{place}"]
            return spec
        return None


_finder = _Finder()


def use(codes: Iterable[PluginCode]) -> None:
    """Import plug-ins, so that their classes can be created by name. One that is in use is left alone, or replaced if
    its code is another one. Raises PluginError: one cannot be imported; with the line."""
    fresh = [code for code in codes if code.name not in LOADED or LOADED[code.name].sha256 != code.sha256]
    for code in fresh:
        forget(code.name)
        LOADED[code.name] = code
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    try:
        for code in fresh:
            for module in code.told.modules:
                _import(code, module)
    except BaseException:
        for code in fresh:
            forget(code.name)
        raise


def forget(name: str) -> None:
    """This process uses a plug-in no longer."""
    if LOADED.pop(name, None) is not None:
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[module]


def classes_of(code: PluginCode) -> list[type]:
    """The classes of a plug-in in use: those that it defines itself, of the modules that are imported for it."""
    modules = [sys.modules[module] for module in code.told.modules if module in sys.modules]
    found = dict.fromkeys(it for module in modules for it in list(vars(module).values()) if isinstance(it, type))
    return [each for each in found if each.__module__.partition(".")[0] == code.name]


def _import(code: PluginCode, module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        raise PluginError(
            f"the plug-in {code.told.source} cannot be loaded: {in_words(error)}{line_in(code, error)}",
            hint=_cure(code, error),
        ) from error


def _cure(code: PluginCode, error: Exception) -> str:
    """What to do about an error of an import."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    alone = code.entry.endswith(".py")  # a file goes to the devices without its neighbours
    relative = isinstance(error, ImportError) and "relative import" in str(error)
    if alone and (relative or (missing and (Path(code.folder) / f"{missing}.py").is_file())):
        return (
            "a plug-in of several files is a folder: put them into one, with an __init__.py that imports the classes, "
            "and write `from .helper import …`"
        )
    return f"pip install what gives {missing!r}, or see whether the name is right" if missing else "mend it there"


def line_in(code: PluginCode, error: BaseException) -> str:
    """The last line of a plug-in in the traceback of an error, in words; "" where there is none."""
    frames = [(each.lineno, each.filename) for each in traceback.extract_tb(error.__traceback__)]
    lines = [
        f", in line {number} of {file}" for number, file in frames if file.startswith(f"{code.folder}/{code.name}")
    ]
    return lines[-1] if lines else ""
