"""The plug-ins of a board's agent: what the service sends, if the board was joined so; else what is installed here."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edgebed.errors import FileError, PluginError
from edgebed.plugin_code import MOST_BYTES, offered, read_installed, write_plugins

MOST_NAMES = 32
"""Plug-ins that an order may ask for."""


def put_plugins(folder: Path, names: Sequence[str], archive: Path | None) -> None:
    """Put copies for the agent into `folder`, in place of those that are there.

    Args:
        names: of the plug-ins that the order asks for. One that is not installed here, or offers nothing to Edgebed, is
            left out: the orchestrator then says what this board lacks.
        archive: of copies that the service has sent; None: what is installed is taken.

    Raises:
        FileError, PluginError: they cannot be read or written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if archive is None:
        write_plugins([read_installed(name) for name in dict.fromkeys(names[:MOST_NAMES]) if offered(name)], folder)
        return
    try:
        with zipfile.ZipFile(archive) as packed:
            if sum(each.file_size for each in packed.infolist()) > 2 * MOST_BYTES:
                raise PluginError(f"{archive} holds more than {2 * MOST_BYTES >> 20} MiB", hint="use smaller plug-ins")
            packed.extractall(folder)
    except OSError as error:
        raise FileError.of(error, archive) from None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:
        raise PluginError(f"{archive} cannot be unpacked: {error}", hint="the service is another version") from None
