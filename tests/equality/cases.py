"""The experiments that are recorded. Each is a set of methods with the rest of an experiment file.

All of them train a small network on the digits of scikit-learn with a cost model that counts operations, so no measured
second of the host decides anything; the costs of the cuts that DTFL plans with are counted, too.
"""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]

FLEET = {
    "name": "equality-5",
    "devices": [{"profile": name} for name in ("eq-a", "eq-b", "eq-c", "eq-d", "eq-e")],
}
"""Five unlike devices that two cores hold without dilation."""

PROFILES = {
    "eq-a": {"cpus": 0.5, "uplink_mbit_s": 100, "downlink_mbit_s": 100, "memory_mib": 2048},
    "eq-b": {"cpus": 0.3, "uplink_mbit_s": 30, "downlink_mbit_s": 30, "memory_mib": 2048},
    "eq-c": {"cpus": 0.2, "uplink_mbit_s": 30, "downlink_mbit_s": 30, "memory_mib": 2048, "latency_ms": 5},
    "eq-d": {"cpus": 0.15, "uplink_mbit_s": 20, "downlink_mbit_s": 30, "memory_mib": 2048},
    "eq-e": {"cpus": 0.1, "uplink_mbit_s": 10, "downlink_mbit_s": 10, "memory_mib": 2048},
}

UNSIMULATED = "latency_ms"
"""Key of a profile that real runs leave out: not every kernel holds it."""

EARLY_EXIT = {"name": "early-exit", "layers": [3, 1, 1], "exits": [2, 5], "weighting": "balanced_adj"}

METHODS: list[Options] = [
    {"name": "fedavg"},
    {"name": "fedyogi"},
    {"name": "splitfed"},
    {"name": "fedgkt"},
    {"name": "s2fl"},
    {"name": "sfl"},
    {"name": "fedpmt"},
    {"name": "feddrop"},
    {"name": "heterofl"},
    {"name": "fedprox"},
    {"name": "drop-slowest"},
    {"name": "tifl", "tiers": 2},
    {"name": "fedat", "tiers": 2},
    EARLY_EXIT,
]
"""Every method but DTFL, which the cases `dtfl-*` simulate."""

DTFL: list[Options] = [{"name": "dtfl"}, {"name": "dtfl", "overlap": False}]
TRAINING = {"rounds": 3, "batch_size": 16, "codec": {"dtype": "uint8", "zstd": True}, "seed": 1}
AS_IF = {
    "device_flops": 1e10,
    "server_flops": 3e10,
    "as_if": {"model": {"name": "resnet56"}, "train_samples": 5000, "batch_size": 50},
}
"""Times and bytes of ResNet-56, which also give DTFL counted costs to plan with."""
SLOW = {"cost": "flops", "device_flops": 1e8, "server_flops": 1e10}
"""Devices so slow that computing, and not only the links, decides who is last."""


def experiment(methods: list[Options], training: Options, simulation: Options, **more: Any) -> Options:
    """An experiment file as a dict. `training` and `simulation` are added to what all cases have."""
    return {
        "name": "equality",
        "fleet": "fleet.yaml",
        "data": {"name": "digits", "train_samples": 300, "test_samples": 100},
        "model": {"name": "resnet-tiny"},
        "methods": methods,
        "training": TRAINING | training,
        "simulation": {**SLOW, "batched": False} | simulation,
        **more,
    }


FAULTS = [
    {"device": "eq-c-1", "round": 1, "after_s": 0.5, "away_s": 20},
    {"device": "eq-e-1", "round": 2, "after_s": 2},
]

SIMULATED: dict[str, Options] = {
    "methods-seed1": experiment(METHODS, {}, {}),
    "methods-seed2": experiment(METHODS, {"seed": 2}, {}),
    "dtfl-seed1": experiment(DTFL, {"rounds": 4}, AS_IF),
    "dtfl-seed2": experiment(DTFL, {"rounds": 4, "seed": 2}, AS_IF),
    "dtfl-fixed": experiment([{"name": "dtfl", "tier": 3}], {}, {}),
    "batched": experiment([{"name": "fedavg"}, {"name": "dtfl"}, EARLY_EXIT], {}, AS_IF | {"batched": True}),
    "environment": experiment(
        [{"name": "fedavg"}, {"name": "dtfl"}, {"name": "fedat", "tiers": 2}],
        {"rounds": 4},
        AS_IF,
        environment={"every": 1, "share": 0.6},
    ),
    "faults": experiment(
        [{"name": "fedavg"}, {"name": "splitfed"}, {"name": "dtfl"}, {"name": "fedat", "tiers": 2}],
        {"rounds": 5},
        AS_IF | {"faults": FAULTS},
    ),
    "deadline": experiment([{"name": "fedavg"}, {"name": "s2fl"}], {"deadline_s": 1.0, "quorum": 2}, {}),
    "lanes": experiment([{"name": "fedat", "tiers": 3, "mu": 0.1}], {"rounds": 9}, {}),
    "privacy": experiment(
        [{"name": "splitfed"}, {"name": "dtfl"}],
        {},
        AS_IF,
        privacy={"dcor_alpha": 0.3, "devices": {"eq-a-1": {"dcor_alpha": 0, "patch_shuffle": 2}}},
    ),
    "operations": experiment(
        [{"name": "fedpmt"}, {"name": "fedpmt", "chooser": "device"}, {"name": "feddrop"}],
        {},
        {"cost": "operations"},
        model={"name": "fcnn", "hidden": [64, 48, 32]},
    ),
    "shares": experiment(
        [{"name": "fedavg"}, {"name": "s2fl", "group": 3}, {"name": "heterofl"}],
        {
            "sample": 0.8,
            "cosine": True,
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "augment": {"crop": 1, "flip": True},
            "codec": {"dtype": "float16"},
            "epochs": 2,
            "max_batches": 2,
        },
        {"dilation": 2.5, "server_slots": 0},
        data={"name": "digits", "train_samples": 300, "test_samples": 100, "validation": 0.2},
        partition={"kind": "dirichlet", "alpha": 0.5},
    ),
}

REAL: dict[str, Options] = {
    "real-fedavg": experiment([{"name": "fedavg"}], {}, AS_IF),
    "real-dtfl": experiment([{"name": "dtfl"}], {}, AS_IF),
}
"""Run on throttled devices, with the plan of their own simulation (`--plan`), so that no measured second decides it."""
