"""The page in a real browser: during a run whose devices die, return and change, after it, and with three runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.experiment import Environment
from orchestrator.records.account import load_summary
from orchestrator.records.recorder import Recorder
from orchestrator.records.summary import Summary
from orchestrator.records.types import DeviceJoined, LimitsSet, RoundFinished, UploadReceived
from orchestrator.records.words import formatting, vocabulary
from orchestrator.report import write_comparison, write_results
from tests import board_run
from tests.e2e.rig import experiment, rig
from tests.synthetic import Synthetic

pytestmark = pytest.mark.browser

ARTEFACTS = Path(os.environ.get("EDGEBED_ARTEFACTS", "artefacts"))
WIDTHS, SCHEMES = (1280, 800), ("light", "dark")


class Watched:
    """A page whose console and requests are watched."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, (self.address, _, self._token) = page, address.partition("?")
        self.complaints: list[str] = []
        self.strangers: list[str] = []

    async def watch(self) -> None:
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        await self.page.route("**/*", self._request)

    async def _request(self, route: Any) -> None:
        """Every request the page makes passes here; one to elsewhere is noted, and not let out."""
        if route.request.url.startswith(self.address):
            await route.continue_()
        else:
            self.strangers.append(route.request.url)
            await route.abort()

    async def go(self, place: str = "") -> None:
        """The first visit brings the token, and leaves a cookie."""
        query, self._token = self._token and f"?{self._token}", ""
        await self.page.goto(self.address + query + place)

    async def says(self, selector: str, text: str, timeout_s: float = 30.0) -> None:
        """Wait until an element that fits has a text."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for(timeout=timeout_s * 1000)

    async def snap(self, name: str) -> None:
        """A picture per width and colour scheme."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
        for scheme in SCHEMES:
            await self.page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                await self.page.set_viewport_size({"width": width, "height": 900})
                assert await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    "wider than its window"
                )
                path = ARTEFACTS / f"dashboard-{name}-{scheme}-{width}.png"
                await self.page.screenshot(path=path, full_page=True)

    def assert_clean(self) -> None:
        assert self.complaints == []
        assert self.strangers == []


@contextlib.asynccontextmanager
async def browser(library: Path, name: str) -> AsyncIterator[Watched]:
    """Page server and browser; the page has no network but the server."""
    from playwright.async_api import async_playwright

    said: list[str] = []
    library.mkdir(exist_ok=True)  # noqa: ASYNC240
    with page_beside(library, name, PageAddress(), said.append):
        async with async_playwright() as playwright:
            chromium = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            watched = Watched(page, said[0].removeprefix("Live page: "))
            await watched.watch()
            try:
                yield watched
            finally:
                await chromium.close()


def synthetic(library: Path, name: str, **options: Any) -> None:
    (library / name).mkdir(parents=True)
    recorder = Recorder(library / name / "records.jsonl")
    for record in Synthetic(**options).records:
        recorder.record(record)
    recorder.close()


@pytest.mark.root
@pytest.mark.mosquitto
async def test_a_real_run_is_seen_while_it_goes_on_and_after(tmp_path: Path) -> None:
    environment = Environment(every=4, share=0.4, profiles=["wider"])
    library = tmp_path / "runs"
    async with browser(library, "") as page:
        await page.go()
        await page.says("#view-runs", "There is no run yet")
        async with rig(tmp_path, experiment(environment, rounds=8, max_batches=24)) as run:
            # Before the page is waited for, since rounds go on meanwhile.
            await run.expect(UploadReceived, lambda r: r.device == "dev-2" and r.round == 1)
            os.kill(run.pid("dev-2"), signal.SIGKILL)
            await page.says("#h-run", "rig: dtfl")
            await page.says("#h-round", "in progress")
            await page.says(".events tbody tr", "left out of round 2 (lost)")  # away itself may be over within a tick
            await page.says("#strip", "limits held by kernel")
            await page.snap("live")
            await run.expect(DeviceJoined, lambda r: r.device == "dev-2" and r.again)
            await page.says(".events", "came back")
            changed = await run.expect(LimitsSet, lambda r: r.why == "reprofile")
            await page.says(f".fleet tr:has-text('{changed.device}')", "wider (since round")
            folder = await run.finish()
            await page.says("#strip", "ended: rounds done")
            number = next(r.round + 1 for r in run.of(RoundFinished) if r.at_ns > changed.at_ns)
        await page.snap("after")
        await answers(page, load_summary(folder), changed.device, number)
        await late_joiner(page)
        page.assert_clean()


async def answers(page: Watched, figures: Summary, changed: str, number: int) -> None:
    """A new user's questions, answered by looking: who was the straggler in round 7, why; when did a profile change?"""
    await page.page.fill("#round", "7")
    await page.page.keyboard.press("Enter")
    await page.says("#h-round", "Round 7")
    straggler, why = figures.rounds[6].straggler, figures.rounds[6].straggler_why
    await page.says("#why", f"The straggler was {straggler}" if straggler else "No straggler: the slowest device was")
    if why:
        await page.says("#why", vocabulary.cause(why))
    await page.page.select_option("#event-kind", "profile")
    await page.page.fill("#event-device", changed)
    cell = page.page.locator("td:first-child, th:first-child", has_text=re.compile(rf"^{number}$"))
    row = page.page.locator(".events tbody tr", has=cell).filter(has_text="profile small → wider")
    await row.first.wait_for()


async def late_joiner(page: Watched) -> None:
    """A second page, opened at the end, shows what the first one saw grow."""
    first = await page.page.locator("#view-run .figures").inner_text()
    await page.page.reload()
    await page.says("#strip", "ended")
    await page.page.wait_for_function(
        "(text) => document.querySelector('#view-run .figures').innerText === text", arg=first
    )
    await page.page.locator("svg.chart .mark").nth(2).wait_for(state="attached")


async def test_three_runs_are_compared_with_the_keyboard_alone(tmp_path: Path) -> None:
    library = tmp_path / "runs"
    synthetic(library, "a", rounds=12, accuracy=0.07, lost=(4, "middle"))
    synthetic(library, "b", rounds=9, accuracy=0.09, method="fedavg")
    synthetic(library, "c", rounds=10, accuracy=0.08, method="splitfed")
    async with browser(library, "synthetic") as page:
        await page.go("#/")
        await page.says(".runs", "splitfed")
        await page.snap("runs")
        for name in ("a", "b", "c"):
            await tab_to(page, f"input[data-run='{name}']")
            await page.page.keyboard.press("Space")
        await tab_to(page, "button.main")
        await page.page.keyboard.press("Enter")
        await page.says("#h-compare", "side by side")
        assert await page.page.evaluate("document.activeElement.id") == "h-compare"
        await page.says("#view-compare table", "speed-up")
        assert await page.page.locator("#view-compare svg.chart").first.locator("path.line").count() == 3
        await page.says("#view-compare", "missed the target")
        await page.snap("compare")
        await hidden_and_zoomed(page)
        await page.page.emulate_media(color_scheme="light")
        await keyboard_on_a_run(page)
        await written_pages(page, library)
        page.assert_clean()


async def hidden_and_zoomed(page: Watched) -> None:
    """A name in the legend hides its curve; + zooms, Escape shows everything."""
    chart = page.page.locator("#view-compare figure").first
    key = chart.locator("button.key", has_text="fedavg")
    await key.press("Enter")
    assert await key.get_attribute("aria-pressed") == "false"
    assert await chart.locator("path.line:not(.sample path)").count() == 2
    await chart.locator("svg.chart").press("+")
    await chart.get_by_text("Whole").wait_for()
    await chart.locator("svg.chart").press("Escape")
    await chart.get_by_text("Whole").wait_for(state="hidden")
    await page.page.select_option("#compare-over", "bytes")
    await page.says("#view-compare figure", "bytes of all devices")


async def written_pages(page: Watched, library: Path) -> None:
    """Report and comparison page draw with the same scripts, without a server. The policy of the live page would forbid
    scripts in a page, so they get a page of their own."""
    write_results(library / "a")
    write_comparison([library / "a", library / "b"], library / "all.html")
    for file, charts, rows in ((library / "a" / "report.html", 6, 5), (library / "all.html", 2, 2)):
        alone = Watched(await page.page.context.browser.new_page(), page.address)
        await alone.watch()
        await alone.page.set_content(file.read_text(encoding="utf-8"))
        await alone.page.locator("svg.gantt rect.track").first.wait_for(state="attached")
        assert await alone.page.locator("svg.chart").count() == charts
        assert await alone.page.locator("svg.gantt").count() == rows
        heads = await alone.page.locator("main h2").count() if rows == 5 else 0
        assert await alone.page.locator("#contents a").count() == heads
        assert await alone.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than its window"
        alone.assert_clean()
        await alone.page.close()


async def tab_to(page: Watched, selector: str, limit: int = 60) -> None:
    """Press Tab until the element has the focus; it must be reachable, and be seen to have it."""
    for _ in range(limit):
        if await page.page.evaluate("(s) => document.activeElement?.matches(s) ?? false", selector):
            outline = await page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"{selector} has the focus and does not show it"
            return
        await page.page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached with {limit} × Tab")


async def keyboard_on_a_run(page: Watched) -> None:
    await page.go("#/run/a")
    await page.says("#strip", "ended")
    await tab_to(page, "button[aria-label='Round before']")
    await page.page.keyboard.press("Enter")
    await page.says("#h-round", "Round 11")
    await tab_to(page, ".fleet button.link")
    await page.page.keyboard.press("Enter")
    await page.says("#h-device", "Device weak")
    assert await page.page.evaluate("document.activeElement.id") == "h-device"
    await page.says("#view-run", "Its profile has not changed")  # what the device's chart shows has come
    await tab_to(page, "svg.chart")
    await page.page.keyboard.press("Home")
    await page.says("#announce", "round 1", timeout_s=5)
    await page.page.locator("#view-run summary").last.press("Enter")
    await page.says("#view-run table", "CPU of a busy loop")
    await landmarks(page)


async def landmarks(page: Watched) -> None:
    """What a screen reader goes by: one main, one h1 in sight, every chart and control with a name."""
    nameless = await page.page.evaluate(
        """() => [...document.querySelectorAll('svg[role=img], input, select, button, [role=region], table')]
            .filter((e) => e.checkVisibility())
            .filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim() && !e.labels?.length)
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    for selector, count in (("main", 1), ("header", 1), ("h1:visible", 1), ("[aria-live]", 1)):
        assert await page.page.locator(selector).count() == count, selector


async def test_a_page_that_followed_a_run_goes_on_to_the_next_method(tmp_path: Path) -> None:
    library = tmp_path / "runs"
    synthetic(library, "first", finish=False)
    async with browser(library, "synthetic") as page:
        await page.go("#/run/first")
        await page.says("#strip", "running")
        synthetic(library, "next", method="fedavg", finish=False)
        last = Recorder(library / "first" / "records.jsonl")
        last.record(Synthetic().records[-4])
        last.close()
        await page.says("#h-run", "fedavg")
        assert await page.page.evaluate("location.hash") == "#/run/next"
        page.assert_clean()


async def test_the_page_and_python_write_figures_alike(tmp_path: Path) -> None:
    values = [
        sign * digits * 10.0**power for sign in (1, -1) for power in range(-4, 9) for digits in (0, 1, 1.125, 9.9951)
    ]
    values += [0.0005, 0.00125, 0.9994, 0.9995, 0.89999, 0.9, 999.4, 999.5, 1234567.0, 0.0348, 2.5, 20.75]
    pairs = {
        "seconds": formatting.seconds,
        "signed": formatting.signed_seconds,
        "percent": formatting.percent,
        "accuracy": formatting.accuracy,
        "number": formatting.number,
        "bytes": formatting.size,
        "rate": lambda value: formatting.rate(1e4 * value),
    }
    async with browser(tmp_path, "synthetic") as watched:
        await watched.go()
        script = """async ([names, values]) => { const f = await import("/static/format.js");
            return names.map((name) => values.map((value) => f[name](name === "rate" ? 1e4 * value : value))); }"""
        found = await watched.page.evaluate(script, [list(pairs), values])
        await last_tick(watched)
    for (name, show), texts in zip(pairs.items(), found, strict=True):
        assert dict(zip(values, texts, strict=True)) == {value: show(value) for value in values}, name


async def last_tick(watched: Watched) -> None:
    """Where the last tick of an axis stands at its end, its label is not cut."""
    script = """async (bytes) => {
        const {Chart} = await import("/static/charts.js");
        const chart = new Chart("bytes");
        document.body.replaceChildren(chart.element);
        chart.element.style.width = "600px";
        const line = {name: "", cls: "c0", points: [[0, 0], [bytes, 1]]};
        chart.draw({series: [line], x: ["bytes", "bytes"], y: ["", "share"]});
        const label = [...chart.svg.querySelectorAll("text.tick.middle")].at(-1);
        const room = chart.svg.getBoundingClientRect().right - label.getBoundingClientRect().right;
        return [label.textContent, room];
    }"""
    text, room = await watched.page.evaluate(script, 125e6)
    assert text == "125 MB"
    assert room >= 0


async def test_boards_have_a_table_and_marks_on_the_time_axis(tmp_path: Path) -> None:
    library = tmp_path / "runs"
    (library / "boards").mkdir(parents=True)
    recorder = Recorder(library / "boards" / "records.jsonl")
    for record in board_run.records():
        recorder.record(record)
    recorder.close()
    async with browser(library, "") as page:
        await page.go("#/run/boards")
        await page.says("section:has(#h-boards) td", "Raspberry Pi 5 Model B Rev 1.0")
        await page.says("section:has(#h-events) td", "its supply voltage is too low")
        await page.page.locator("section:has(#h-lanes) rect.strip.m-board").first.wait_for()
        assert await page.page.locator("section:has(#h-lanes) rect.strip.m-board").count() == 4
        page.assert_clean()
