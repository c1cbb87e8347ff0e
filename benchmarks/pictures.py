"""The pictures of README and docs, taken again: pages of the demo's runs and of simulations, in a browser.

`EDGEBED_RUNS=FOLDER python -m benchmarks pictures`: FOLDER holds runs of the demo (`make demo` writes them to `runs`)
and gets the simulations. Without it nothing is done, so that `make bench` changes no file.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._figures import figure, progress, skip
from benchmarks._page import browser
from benchmarks._paths import ROOT

DOCS = ROOT / "docs"
CURVE = DOCS / "accuracy-time.svg"
COMMAND = [sys.executable, "-m", "orchestrator"]
EXPERIMENT = {
    "name": "side-by-side",
    "fleet": str(ROOT / "profiles" / "fleets" / "dtfl-10.yaml"),
    "data": {"name": "digits"},
    "partition": {"kind": "iid"},
    "model": {"name": "resnet-tiny"},
    "speed": "reference x86-avx512",
    "methods": [{"name": "dtfl", "tiers": 7}, {"name": "splitfed"}, {"name": "fedavg"}, {"name": "fedat"}],
    "training": {"rounds": 20, "target_accuracy": 0.9, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.003}},
}


def main() -> None:
    if "EDGEBED_RUNS" not in os.environ:
        skip("EDGEBED_RUNS names no folder with runs of the demo")
        return
    runs = Path(os.environ["EDGEBED_RUNS"]).resolve()
    if not list(runs.glob("demo-dtfl-*")):
        skip(f"{runs} holds no run of the demo's DTFL")
        return
    simulated(runs)
    for folder in runs.glob("demo-*"):
        subprocess.run([*COMMAND, "report", str(folder)], check=True, stdout=subprocess.DEVNULL)
    with page_of(runs) as address, browser() as chromium:
        take(chromium, address, runs)
    curve = ["--figure", "accuracy-time", "--width", "page", "--svg", str(CURVE)]
    compare = [*COMMAND, "compare", "side-by-side-*", "--baseline", "fedavg", *curve]
    subprocess.run(compare, check=True, stdout=subprocess.DEVNULL)
    for path in sorted([*DOCS.glob("*.png"), CURVE]):
        figure(f"{path.name}, kB", path.stat().st_size / 1000)


def simulated(runs: Path) -> None:
    """Four methods with three seeds, where they are not there yet."""
    if list(runs.glob("side-by-side-*")):
        return
    done = progress("simulating four methods with three seeds")
    path = runs / "side-by-side.yaml"
    path.write_bytes(msgspec.yaml.encode(EXPERIMENT))
    subprocess.run([*COMMAND, "simulate", str(path), "--seeds", "1,2,3", "--quiet"], check=True, stdout=sys.stderr)
    done()


@contextmanager
def page_of(runs: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*COMMAND, "dashboard"], env=os.environ | {"EDGEBED_RUNS": str(runs)}, stdout=-1, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("Page: ").strip()
    finally:
        process.terminate()
        process.wait()


def take(chromium: Any, address: str, runs: Path) -> None:
    """All pictures; each is as high as what it shows."""
    names = sorted(folder.name for folder in runs.iterdir() if (folder / "records.jsonl").is_file())
    dtfl = next(name for name in names if name.startswith("demo-dtfl-"))
    side = [name for name in names if name.startswith("side-by-side-")]
    fedat = next(name for name in side if "-fedat-" in name)
    compared = f"#/compare/{','.join(side)}"
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.locator("#view-runs tbody a").first.wait_for()
    shoot(page, "dashboard-runs", 760)
    show(page, f"#/run/{dtfl}", "#view-run .gantt rect.track")
    shoot(page, "dashboard", 1035)
    show(page, compared, "#view-compare .gantt rect.track")
    shoot(page, "dashboard-compare", 1215)
    page.emulate_media(color_scheme="dark")
    show(page, f"#/run/{fedat}", "#view-run [aria-labelledby=h-load] rect.level")
    page.locator("#view-run [aria-labelledby=h-lanes]").scroll_into_view_if_needed()
    top = page.locator("#view-run [aria-labelledby=h-lanes]").bounding_box()["y"]
    page.evaluate(f"scrollBy(0, {top - 60})")
    page.wait_for_timeout(500)
    save(page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 840}), "dashboard-lanes")
    halves = []
    for scheme in ("light", "dark"):
        phone = chromium.new_page(viewport={"width": 390, "height": 1170}, color_scheme=scheme)
        phone.goto(address)
        show(phone, compared, "#view-compare .gantt rect.track")
        halves.append(phone.screenshot())
    save(beside(halves), "dashboard-phone")
    report = chromium.new_page(viewport={"width": 1280, "height": 1700})
    report.goto((runs / dtfl / "report.html").as_uri())
    report.locator("#gantt rect.track").first.wait_for(state="attached")
    shoot(report, "report", 1700)


def show(page: Any, place: str, ready: str) -> None:
    page.evaluate(f"location.hash = {place!r}")
    page.locator(ready).first.wait_for(state="attached")
    page.wait_for_timeout(1500)  # charts that come with a request of their own


def shoot(page: Any, name: str, height: int) -> None:
    page.set_viewport_size({"width": 1280, "height": height})
    page.wait_for_timeout(500)
    save(page.screenshot(), name)


def beside(pictures: list[bytes]) -> bytes:
    """Two pictures of one size side by side."""
    from PIL import Image

    left, right = (Image.open(io.BytesIO(each)).convert("RGB") for each in pictures)
    both = Image.new("RGB", (left.width + right.width + 20, left.height), "white")
    both.paste(left, (0, 0))
    both.paste(right, (left.width + 20, 0))
    found = io.BytesIO()
    both.save(found, "png")
    return found.getvalue()


def save(png: bytes, name: str) -> None:
    """With 256 colours: a quarter of the size."""
    from PIL import Image

    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
        DOCS / f"{name}.png", optimize=True
    )
