"""A profile that is fitted to an artificial board: its quota and rates are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.wire.settings import LearningTask

pytest.importorskip("cryptography")

from edgebed.limits.spec import Limits
from edgebed.models.staged import MODELS, seeded
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec
from orchestrator.look_alike.bench import Job
from orchestrator.look_alike.measure import Outcome, measure
from tests.artificial_board import artificial_board

pytestmark = [pytest.mark.root, pytest.mark.mosquitto, pytest.mark.alone]

LIMITS = Limits(0.4, 12_000_000, 25_000_000, 2048)


async def test_the_limits_of_an_artificial_board_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    net = seeded(lambda: MODELS.create({"name": "resnet-tiny"}, "test").build(LearningTask((1, 8, 8), 10)), 0)
    # Five pairs: a shared host changes its speed within seconds.
    job = Job(net, {"name": "resnet-tiny"}, [7], 32, steps_s=1.0, repeats=5)
    with artificial_board(tmp_path, "pi", LIMITS):
        spec = FleetSpec("measure-pi", "local", 0.0, (DeviceSpec("pi", BOARD, "pi"),), tmp_path / "fleet.yaml")
        for _ in range(3):  # a look-alike that differs says so, and is measured again, as a user would
            outcome = await measure(spec, "pi", job, "local", lambda line: None)
            if differing(outcome) <= {"half a round trip"}:
                break
    found = outcome.profile.limits
    assert found.cpus == pytest.approx(LIMITS.cpus, rel=0.2)
    assert found.uplink_bit_s == pytest.approx(LIMITS.uplink_bit_s, rel=0.05)
    assert found.downlink_bit_s == pytest.approx(LIMITS.downlink_bit_s, rel=0.05)
    assert outcome.profile.look_alike_of == "pi"
    assert differing(outcome) <= {"half a round trip"}


def differing(outcome: Outcome) -> set[str]:
    """What of the look-alike is off by more than a fifth."""
    return {row.name for row in outcome.rows if row.error is not None and abs(row.error) > 0.2}
