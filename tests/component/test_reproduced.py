"""A deadline that follows from another row, and the clock of DTFL's authors, through the simulator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orchestrator.experiment import Experiment
from orchestrator.papers.compute import longest_round_s, run_or_go_on, with_deadline
from orchestrator.papers.tables import jobs, load_reproduction
from orchestrator.records.account import load_summary
from orchestrator.records.summary import Summary
from orchestrator.runs.request import Watch, quiet

PAPERS = Path(__file__).parents[2] / "profiles" / "experiments" / "papers"
TABLE = PAPERS / "fedpmt-table3.yaml"
AS_SIMULATED = PAPERS / "dtfl-table3-as-simulated.yaml"

CLOCK = [
    ({"name": "dtfl", "tiers": 7, "tier": 2, "overlap": False}, 8.364e7, 0.0624, 5_000 * (64 * 32 * 32 * 4 + 8) / 1e6),
    ({"name": "fedavg"}, 5.224e8, 2.4, 0.0),
]
"""Method, FLOPs of a sample of ResNet-56, MB of the weights that a device holds, and MB of its features."""


def merged(experiment: Experiment, runs: Path) -> list[int]:
    """How many devices each of two rounds merged."""
    training = msgspec.structs.replace(experiment.training, rounds=2)
    short = msgspec.structs.replace(experiment, training=training)
    return [row.merged for row in simulated(short, runs).rounds]


def simulated(experiment: Experiment, runs: Path) -> Summary:
    folder = runs / f"{experiment.methods[0]['name']}-{experiment.training.deadline_s}"
    return load_summary(run_or_go_on(experiment, TABLE, folder, Watch(quiet)))


def test_fedpmt_s_own_devices_keep_the_deadline_and_three_classes_of_fedavg_s_do_not(tmp_path: Path) -> None:
    """Two devices of each of five levels. 26.5 s, the paper's, would leave FedPMT's at 0.33 of the speed out, for a
    transfer takes time."""
    found = jobs(load_reproduction(TABLE), TABLE, "digits", [1])
    fedpmt, fedavg = (next(job for job in found if job.row == row and job.probe) for row in ("fedpmt", "fedavg"))
    assert fedpmt.probe is not None
    longest = longest_round_s(simulated(fedpmt.probe, tmp_path))
    assert 26.5 < longest < 27
    assert merged(with_deadline(fedpmt.experiment, longest), tmp_path) == [10, 10]
    assert merged(with_deadline(fedavg.experiment, longest), tmp_path) == [4, 4]
    assert merged(with_deadline(fedpmt.experiment, 26.4), tmp_path) == [8, 8]


@pytest.mark.parametrize(("method", "flops", "held_mb", "features_mb"), CLOCK, ids=["tier 2", "fedavg"])
def test_the_clock_of_dtfl_s_authors_by_hand(
    method: dict[str, object], flops: float, held_mb: float, features_mb: float, tmp_path: Path
) -> None:
    """Model down, features and model up at 10 MiB/s, and the computing of 5,000 samples on 0.256 CPUs, one after the
    other: the devices of coefficient 250 are last. The server adds nothing."""
    (job, *_) = (job for job in jobs(load_reproduction(AS_SIMULATED), AS_SIMULATED, "digits") if job.row == "dtfl")
    training = msgspec.structs.replace(job.experiment.training, rounds=1)
    once = msgspec.structs.replace(job.experiment, training=training, methods=[method])
    by_hand = flops * 5_000 / (0.256 * 3.94e10) + (2 * held_mb + features_mb) / (83.886 / 8)
    clock = longest_round_s(simulated(once, tmp_path / "free"))
    assert clock == pytest.approx(by_hand, rel=0.01)
    charged = msgspec.structs.replace(once.simulation, server_time=True)
    with_server = msgspec.structs.replace(once, simulation=charged)
    later = longest_round_s(simulated(with_server, tmp_path / "charged")) - clock
    assert later > 0.1 if features_mb else later == 0
