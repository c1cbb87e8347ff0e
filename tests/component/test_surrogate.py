"""A simulation with the times and bytes of a larger network: what its devices report must be the larger one's too."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.types import CutProfiled, DeviceDone
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

EXPERIMENTS = Path(__file__).parents[2] / "profiles" / "experiments"
AS_IF = {
    "name": "as-if",
    "fleet": "../fleets/desk-5.yaml",
    "data": {"name": "digits", "train_samples": 100, "test_samples": 50},
    "methods": [{"name": "dtfl"}],
    "training": {"rounds": 1, "batch_size": 10, "optimizer": {"name": "sgd", "lr": 0.01}},
    "simulation": {"cost": "flops", "as_if": {"model": {"name": "resnet56"}, "train_samples": 1000}},
}


def test_the_method_learns_the_speed_of_the_link_and_not_of_the_small_networks_bytes(tmp_path: Path) -> None:
    """Else a scheduler takes links for far slower than they are, and offloads nothing."""
    request = SimulationRequest(msgspec.convert(AS_IF, Experiment), EXPERIMENTS / "as-if.yaml", tmp_path)
    (folder,) = simulate(request, session.Watch(session.quiet))
    records = list(read(folder / "records.jsonl"))
    rates = {info.name: info.uplink_bit_s / 8 for info in sort(records).started.devices}
    done = {record.device: record.link_bytes_s for record in records if isinstance(record, DeviceDone)}
    assert set(done) == set(rates)
    assert all(0.95 < done[device] / rate < 1.05 for device, rate in rates.items()), done


def test_a_method_plans_with_those_cuts_that_both_networks_have(tmp_path: Path) -> None:
    """ResNet-8 has a head at its fourth cut, VGG-16 only three split points (S²FL's tables)."""
    experiment = msgspec.convert(
        {
            **AS_IF,
            "model": {"name": "resnet8"},
            "methods": [{"name": "s2fl", "times": "own", "warm_up": "profile"}],
            "simulation": {"cost": "flops", "as_if": {"model": {"name": "vgg16"}, "train_samples": 1000}},
        },
        Experiment,
    )
    (folder,) = simulate(
        SimulationRequest(experiment, EXPERIMENTS / "as-if.yaml", tmp_path), session.Watch(session.quiet)
    )
    records = list(read(folder / "records.jsonl"))
    assert [record.cut for record in records if isinstance(record, CutProfiled)] == [1, 2, 3]
