"""See `program`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from orchestrator.records.reader import read
from tests.hostile.attempts import Result, table
from tests.hostile.fleet import attacked
from tests.hostile.program import at_service, in_fleet


async def main(fleet: bool) -> list[Result]:
    results = await at_service()
    if fleet:
        with tempfile.TemporaryDirectory() as folder:
            async with attacked(Path(folder), names=2000) as work:
                (run,) = await work
            results += in_fleet(read(run / "records.jsonl"))
    return results


if __name__ == "__main__":
    found = asyncio.run(main("--fleet" in sys.argv[1:]))
    print(table(found))
    more = sum(not each.fine for each in found)
    print(f"{len(found)} attempts, {more} of them got more than they should")
    sys.exit(bool(more))
