"""Chooses the cost model that an experiment asks for."""

from __future__ import annotations

from pathlib import Path

from edgebed.methods.base import Batch
from edgebed.models.staged import StagedModel
from edgebed.wire.settings import Codec
from orchestrator.experiment import Simulation
from orchestrator.fleet.spec.profile import found_speed
from orchestrator.references.reference import Reference, load_reference
from orchestrator.references.work_laws import WorkLaws
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.paper_costs import FlopCosts, OperationCosts, TimedCosts
from orchestrator.simulation.reference_costs import ReferenceCosts


def wanted_reference(wanted: Simulation, speed: str, path: Path) -> Reference | None:
    """The reference whose costs a simulation takes: the one that it names, or else the one that real devices would be
    held to. None: its costs are none of a reference.

    Args:
        speed: `host`, or `reference NAME`.
        path: of the experiment file.

    Raises:
        UsageError: there is no such reference.
    """
    cost = wanted.cost or ("" if wanted.as_if is not None else speed)
    name = found_speed(cost, path).partition(" ")[2].strip()
    return load_reference(name) if name else None


def cost_model(
    wanted: Simulation,
    model: StagedModel,
    batch: Batch,
    reference: Reference | None,
    codec: Codec | None = None,
    *,
    spread: bool = False,
) -> CostModel:
    """The cost model of a simulation. Raises UsageError where it cannot count this network."""
    if reference is not None:
        return ReferenceCosts(reference, spread=spread)
    match wanted.cost:
        case "flops":
            return FlopCosts(Flops(model), wanted.device_flops, wanted.server_flops, len(batch[1]), codec)
        case "operations":
            return OperationCosts(Operations(model), wanted.device_flops)
        case _:
            return TimedCosts(WorkLaws(model, batch))
