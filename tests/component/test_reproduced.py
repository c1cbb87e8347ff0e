"""A deadline that follows from another row, through the simulator."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.papers.compute import longest_round_s, run_or_go_on, with_deadline
from orchestrator.papers.tables import jobs, load_reproduction
from orchestrator.records.account import load_summary
from orchestrator.records.summary import Summary
from orchestrator.runs.request import Watch, quiet

TABLE = Path(__file__).parents[2] / "profiles" / "experiments" / "papers" / "fedpmt-table3.yaml"


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
