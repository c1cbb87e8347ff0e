"""`--notify URL`: one message when an experiment is over, however it ends."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgebed.errors import UsageError
from orchestrator.records.account import load_summary

TIMEOUT_S = 10.0


@contextlib.contextmanager
def notice(url: str | None, experiment: str, say: Callable[[str], None]) -> Iterator[list[Path]]:
    """Send one POST to `url` when the block ends. Its JSON has: `experiment`, `ended` (finished, interrupted, failed),
    `why`, and `runs`, each with `run`, `method`, `ended`, `best_accuracy` and `time_to_target_s`. What is wrong with
    the receiver is told, and raises nothing. The block puts the folders of its runs into the list.

    Raises:
        UsageError: not an address of HTTP.
    """
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise UsageError(f"--notify {url!r} is not an HTTP address", hint="give https://host/path")
    folders: list[Path] = []
    ended, why = "failed", ""
    try:
        yield folders
        ended = "finished"
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    except BaseException as error:
        why = str(error)
        raise
    finally:
        if url is not None:
            _post(url, {"experiment": experiment, "ended": ended, "why": why, "runs": _runs(folders)}, say)


def _runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    names = ("run", "method", "ended", "best_accuracy", "time_to_target_s")
    found = []
    for folder in folders:
        with contextlib.suppress(Exception):  # a run that broke off early may have no account
            found.append({name: getattr(load_summary(folder), name) for name in names})
    return found


def _post(url: str, content: dict[str, Any], say: Callable[[str], None]) -> None:
    data, head = json.dumps(content).encode(), {"Content-Type": "application/json", "User-Agent": "edgebed"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=TIMEOUT_S):
            pass
    except (OSError, ValueError) as error:
        say(f"--notify {urlsplit(url).netloc}: the message was not taken: {error}")
