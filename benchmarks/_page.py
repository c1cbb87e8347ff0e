"""A browser (without Chromium: a client of the stream) that looks at a page, or at nothing, as standard input says.

Lines: an address opens it, an empty line looks away. Says "ready" once it has begun.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def with_browser() -> None:
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        print("ready", flush=True)
        for line in sys.stdin:
            page.goto(line.strip() or "about:blank")


def with_client() -> None:
    answer: Any = None
    print("ready", flush=True)
    for line in sys.stdin:
        if answer is not None:
            answer.set()
        answer = threading.Event()
        if line.strip():
            base, _, run = line.strip().partition("#/run/")
            threading.Thread(target=_drain, args=(base.replace("?", f"events?run={run}&"), answer), daemon=True).start()


def _drain(address: str, ended: threading.Event) -> None:
    with httpx.stream("GET", address, timeout=None, follow_redirects=True) as answer:
        for _ in answer.iter_bytes():
            if ended.is_set():
                return


if __name__ == "__main__":
    with_browser() if sys.argv[1] == "browser" else with_client()
