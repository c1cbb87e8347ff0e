"""What lies in a run's folder, for the links of the page: report, trace, and figures for papers made on demand."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from starlette.responses import PlainTextResponse, Response

from edgebed.module_process import module_command
from orchestrator.files.plain import read_plain

OFFERED = {"report.html": "text/html; charset=utf-8", "trace.json": "application/json"}
"""Files of a run that may be asked for, and their types."""

REPORT_POLICY = "; ".join(
    (
        "sandbox allow-scripts",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""A report has its scripts in it. In a sandbox it has no origin: it cannot read the cookie, nor ask this server."""


def of_folder(folder: Path) -> list[str]:
    """Which of the files there are."""
    return [name for name in OFFERED if (folder / name).is_file() and not (folder / name).is_symlink()]


async def file(folder: Path, name: str) -> Response:
    """One of the files that are offered; 404 where it is not there."""
    path = folder / name
    try:
        content = await asyncio.to_thread(read_plain, path)
    except OSError:
        return PlainTextResponse(f"{name} is not there: `edgebed report` writes it.\n", 404)
    headers = {"content-security-policy": REPORT_POLICY} if name == "report.html" else {}
    return Response(content, media_type=OFFERED[name], headers=headers)


async def figures(folder: Path) -> Response:
    """The PDF of `edgebed report --pdf`, drawn in a process of its own with this one's low priority."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "figures.pdf"
        child = await asyncio.create_subprocess_exec(
            *module_command("orchestrator.report", str(folder), str(path)), stderr=asyncio.subprocess.DEVNULL
        )
        if await child.wait() or not path.is_file():
            return PlainTextResponse("The figures could not be drawn: try `edgebed report --pdf`.\n", 500)
        return Response(await asyncio.to_thread(path.read_bytes), media_type="application/pdf")
