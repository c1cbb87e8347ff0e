"""The cost model that an experiment asks for."""

from __future__ import annotations

from pathlib import Path

from edgebed.methods.base import Batch
from edgebed.models.staged import ModelPlugin, StagedModel
from orchestrator.experiment import Simulation
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.paper import FlopCosts, OperationCosts, ReferenceCosts
from orchestrator.simulation.reference import Reference


def cost_model(wanted: Simulation, near: Path, plugin: ModelPlugin, model: StagedModel, batch: Batch) -> CostModel:
    """Raises UsageError where the model cannot be had: no calibration file, a network it does not count."""
    match wanted.cost:
        case "flops":
            return FlopCosts(Flops(plugin, model), wanted.device_flops, wanted.server_flops)
        case "operations":
            return OperationCosts(Operations(model), wanted.device_flops, wanted.server_flops)
        case _:
            return ReferenceCosts(Reference(model, batch))
