"""The attack program: every attempt, and what it got.

`python -m tests.hostile` needs root and Mosquitto; with `--fleet` a hostile device is put into a running fleet, too. It
exits with 1 where an attempt got more than it should.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.records.types import DeviceOut, Record
from tests.component._between import padded_ca
from tests.component._boards import made, running
from tests.hostile import host, service
from tests.hostile.agent import SAID
from tests.hostile.attempts import Result, tried


async def at_service() -> list[Result]:
    """On a live boards service, whose CA has padding in base64, so that a second one could be hidden behind it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # other users of the host get in
        async with running(made(Path(folder, "lab")), padded_ca(made(Path(folder, "place")))) as lab:
            await service.prepared(lab)
            return [await tried(each, lab) for each in (*service.ATTEMPTS, *host.ATTEMPTS)]


def in_fleet(records: Sequence[Record]) -> list[Result]:
    """Of the hostile device of `fleet.attacked`, from the run's records: one attempt per round, after the first."""
    outs = {record.round: record.why for record in records if isinstance(record, DeviceOut)}
    return [
        Result("device", attack, outs.get(number, "merged")[:100], said, said in outs.get(number, "merged"))
        for number, (attack, said) in list(enumerate(SAID.items()))[1:]
    ]
