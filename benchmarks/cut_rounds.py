"""Rounds cut by a deadline while uploads of one device wait at its slow server half: does the device come back?

Three agents at Mosquitto. The server half of dev-3 takes 0.4 s longer for each step than it should, the quorum is 2,
and every round ends at its deadline while uploads of dev-3 wait for their receipts. A round is missed when no upload of
dev-3 arrived in it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from benchmarks._figures import figure, skip
from orchestrator.records.types import RoundFinished, UploadReceived
from tests.component._cut import SLOW, Cut, fleet_on
from tests.component._fleet import training

TRIES, ROUNDS = 4, 8
STEP_S, DEADLINE_S = 0.4, 1.5


async def once() -> tuple[int, int, int]:
    """Rounds that dev-3 missed, the most times that one chunk was sent, and rounds that were cut."""
    cut = Cut({"name": "dtfl", "tier": 3}, range(ROUNDS), STEP_S)
    wanted = training(rounds=ROUNDS, batch_size=4, deadline_s=DEADLINE_S, quorum=2, liveness_s=60.0)
    with tempfile.TemporaryDirectory() as folder:
        async with fleet_on("mosquitto", Path(folder)) as (made, links):
            try:
                await made.play(cut.method, wanted, slots=3)
            finally:
                cut.free.set()
            here = {r.round for r in made.of(UploadReceived) if r.device == SLOW}
            most = max(count for link in links.values() for count in link.sent.values())
            return ROUNDS - len(here), most, sum(r.why == "deadline" for r in made.of(RoundFinished))


def main() -> None:
    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
        skip("needs Mosquitto")
        return
    for number in range(1, TRIES + 1):
        missed, most, cut = asyncio.run(once())
        note = f"{cut} of {ROUNDS} rounds were cut by the deadline"
        figure(f"try {number}: rounds that dev-3 missed", missed, most=0, note=note)
        figure(f"try {number}: times one chunk was sent", most, most=2)
