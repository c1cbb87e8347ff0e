"""Chooses the cost model that an experiment asks for."""

from __future__ import annotations

from pathlib import Path

from edgebed.errors import UsageError
from edgebed.methods.base import Batch
from edgebed.models.staged import StagedModel
from edgebed.wire.settings import Codec
from orchestrator.clock import now_s
from orchestrator.experiment import Grain, Simulation
from orchestrator.simulation import host_costs
from orchestrator.simulation.calibrated import CalibratedCosts
from orchestrator.simulation.calibration import Calibration, load_calibration
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.paper_costs import FlopCosts, OperationCosts, ReferenceCosts
from orchestrator.simulation.reference import Reference


def calibration_of(wanted: Simulation, near: Path) -> Calibration | None:
    """The calibration that an experiment names; where it names nothing, the costs of this host if they were measured.
    None: the costs are no calibration's.

    Raises:
        UsageError: there is no such file.
    """
    if wanted.as_if is not None:
        return None
    if wanted.cost == "calibrated":
        if wanted.calibration is None:
            raise UsageError("cost: calibrated without a calibration", hint="give --calibrate-from RUN, or name a file")
        return load_calibration((near.parent / wanted.calibration).resolve())
    if wanted.cost not in ("host", None):
        return None
    calibration = host_costs.known()
    if calibration is None and wanted.cost == "host":
        raise UsageError(
            f"cost: host, but the costs of this host are not in {host_costs.host_costs_file()}",
            hint="measure them with `edgebed profile host` (a minute), or choose another cost",
        )
    return calibration


def cost_model(
    wanted: Simulation,
    model: StagedModel,
    batch: Batch,
    calibration: Calibration | None,
    grain: Grain = "quota",
    codec: Codec | None = None,
) -> CostModel:
    """The cost model of a simulation: of the calibration where there is one. Raises UsageError where the model cannot
    count this network."""
    if calibration is not None:
        laws = {"device": calibration.device, "server": calibration.server}
        reference = Reference(model, batch, **laws, encode=calibration.encode, layers=calibration.layers)
        return CalibratedCosts(calibration, reference, now_s, grain)
    match wanted.cost:
        case "flops":
            return FlopCosts(Flops(model), wanted.device_flops, wanted.server_flops, len(batch[1]), codec)
        case "operations":
            return OperationCosts(Operations(model), wanted.device_flops)
        case _:
            return ReferenceCosts(Reference(model, batch))
