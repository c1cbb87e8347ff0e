"""Data sets that Hugging Face's library `datasets` reads: a name of its hub, or a folder or file of one's own."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from edgebed.datasets.base import DataSet, Part, Share, Source, Subset, hold_out, in_memory
from edgebed.datasets.table import as_numbers, take_answers
from edgebed.errors import UsageError
from edgebed.typed import nearest
from edgebed.vision import picture

SAVED = ("dataset_dict.json", "state.json")  # one of them is in a folder that `save_to_disk` has written
NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


class HuggingFace(DataSet):
    name = "huggingface"
    summary = "a data set of Hugging Face's hub by its name, or a folder or file that its library reads"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str = ""  # a folder or file, relative to the folder of data sets
        hub: str = ""  # in its place, a name of the hub: NAME or OWNER/NAME
        config: str = ""  # of a data set that has several
        revision: str = ""  # of the hub's data set; "": the newest
        train: str = "train"  # the part to train with
        test: str = ""  # the part to test with; "": `test`, or test_share of the training part where there is none
        target: str = "label"  # the column to predict
        column: str = ""  # the column to predict it from; "": the pictures, else all others as rows of a table
        size: Annotated[int, msgspec.Meta(ge=4, le=1024)] = 32  # side of a picture
        grey: bool = False
        length: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 64  # characters of a text
        test_share: Share = 0.2

        def __post_init__(self) -> None:
            if bool(self.path) == bool(self.hub):
                raise ValueError("write either `path`, a folder or file, or `hub`, a name of Hugging Face's hub")
            if self.hub and not NAME.fullmatch(self.hub):
                raise ValueError(f"hub: {self.hub!r} is no name of the hub; write NAME or OWNER/NAME")

    options: Options

    @property
    def title(self) -> str:
        return self.options.hub or Path(self.options.path).name

    def open(self, root: Path, seed: int) -> Source:
        import pandas as pd

        library, o = _library(), self.options
        parts = self._parts(library, root, seed)
        kinds, many = parts[0].features, len(parts[0])
        column = o.column or next((name for name, kind in kinds.items() if isinstance(kind, library.Image)), "")
        self._check(library, parts, column)
        is_picture = isinstance(kinds.get(column), library.Image)
        read = [o.target] if is_picture else [o.target, column] if column else list(kinds)
        frame = pd.concat([part.select_columns(read).to_pandas() for part in parts], ignore_index=True)
        if isinstance(kinds[o.target], library.ClassLabel):  # an answer that is kept secret, -1, becomes a missing one
            frame[o.target] = frame[o.target].map(dict(enumerate(kinds[o.target].names)))
        if is_picture:
            frame[column] = range(len(frame))  # pictures are read when they are used
        y, names = take_answers(frame, o.target, self.title)
        labels = y[:many], y[many:]
        if is_picture:
            train, test = (self._pictures(library, root, *each, column) for each in zip(parts, labels, strict=True))
            return Source(train, test, names)
        if column and getattr(kinds[column], "dtype", "") in ("string", "large_string"):
            x, vocabulary = as_tokens(list(frame[column]), many, o.length)
        else:
            x, vocabulary = as_numbers(frame, self.title), 0
        return Source(in_memory(x[:many], labels[0]), in_memory(x[many:], labels[1]), names, vocabulary=vocabulary)

    def _parts(self, library: Any, root: Path, seed: int) -> list[Any]:
        """The training and the test part."""
        o, found = self.options, self._load(library, root)
        parts = found if isinstance(found, dict) else {o.train: found}  # saved alone, a part has no name
        test = o.test or ("test" if "test" in parts else "")
        for name in (o.train, test):
            if name and name not in parts:
                raise UsageError(
                    f"{self.title} has no part {name!r}{nearest(name, list(parts))}",
                    hint=f"set `train` and `test` to parts that there are: {', '.join(parts)}",
                )
        if test:
            return [parts[o.train], parts[test]]
        rows = hold_out(torch.arange(len(parts[o.train])), o.test_share, seed)
        return [parts[o.train].select(each.tolist()) for each in rows]

    def _load(self, library: Any, root: Path) -> Any:
        """All parts by name, or the only one."""
        o, path = self.options, root / self.options.path
        try:
            if o.hub:
                if Path(o.hub).exists():  # the library would read it in place of the hub's
                    raise UsageError(
                        f"there is a {o.hub!r} in this folder", hint="name it as `path`, or start elsewhere"
                    )
                return library.load_dataset(o.hub, o.config or None, revision=o.revision or None)
            if any((path / name).is_file() for name in SAVED):
                return library.load_from_disk(str(path))
            if path.is_dir():
                return library.load_dataset(str(path), o.config or None)
            if not path.is_file():
                raise UsageError(f"{path} is no file or folder", hint="set path, or EDGEBED_DATA above it")
            return library.load_dataset(str(path.parent), data_files=path.name)  # by the suffix
        except (OSError, ValueError, TypeError, KeyError, library.exceptions.DatasetsError) as error:
            hint = "without a network, give a copy of it as `path`" if o.hub else "docs/data.md says what can be read"
            raise UsageError(f"{self.title} cannot be loaded: {' '.join(str(error).split())}", hint=hint) from None

    def _check(self, library: Any, parts: list[Any], column: str) -> None:
        """Raises UsageError where a column is not there, or holds what cannot be learned."""
        kinds, target = parts[0].features, self.options.target
        for name in (target, column) if column else (target, *kinds):
            if name == target == column or any(name not in part.features for part in parts):
                raise UsageError(
                    f"{self.title} has no column {name!r} beside others, or not in both parts"
                    f"{nearest(name, list(kinds))}",
                    hint=f"set `target` and `column` to two of: {', '.join(kinds)}",
                )
            fit = (library.Value, library.ClassLabel, *((library.Image,) if name == column else ()))
            if not isinstance(kinds[name], fit):
                raise UsageError(
                    f"{self.title}: {name} holds neither numbers, texts nor classes",
                    hint="name other columns in `target` and `column`, or save the data without this one",
                )

    def _pictures(self, library: Any, root: Path, part: Any, y: Tensor, column: str) -> Part:
        files = part.cast_column(column, library.Image(decode=False))

        def read(rows: Tensor) -> Tensor:
            o, found = self.options, files.select(rows.tolist())[column]
            sources = [f["bytes"] or self._own(library, root, str(f["path"])) for f in found]
            return torch.stack([picture(each, size=o.size, grey=o.grey) for each in sources])

        return Part(y, read)

    def _own(self, library: Any, root: Path, name: str) -> str:
        """A file that the data name. Raises UsageError where it is not one of theirs, for devices get it."""
        config, hub = library.config, importlib.import_module("huggingface_hub.constants")
        homes = [config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH, config.EXTRACTED_DATASETS_PATH]
        own = root / self.options.path
        homes += [hub.HF_HUB_CACHE] if self.options.hub else [own if own.is_dir() else own.parent]
        try:
            file = Path(name).resolve(strict=True)
            found = file.is_file() and any(file.is_relative_to(Path(home).resolve()) for home in homes)
        except (OSError, RuntimeError, ValueError):  # absent, a loop of links, a NUL
            found = False
        if not found:
            hint = "ask who made these data; files that links of yours lead to can be copied into them"
            raise UsageError(f"{self.title} names {name}, which is not its own", hint=hint)
        return name


def as_tokens(texts: list[str], train: int, length: int) -> tuple[Tensor, int]:
    """Texts as (N, length) characters, and how many different ones there are in the first `train` of them. 0 stands
    for any other character, and after the end of a text."""
    known = sorted({character for text in texts[:train] for character in text[:length]})
    number = {character: place for place, character in enumerate(known, 1)}
    x = torch.zeros(len(texts), length, dtype=torch.int64)
    for row, text in zip(x, texts, strict=True):
        row[: len(text)] = torch.tensor([number.get(each, 0) for each in text[:length]], dtype=torch.int64)
    return x, len(known) + 1


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        hint = "pip install './edgebed-VERSION-py3-none-any.whl[huggingface]'"
        raise UsageError(f"data: huggingface needs the package datasets: {error}", hint=hint) from None
