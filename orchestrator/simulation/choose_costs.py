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


def cost_model(
    wanted: Simulation,
    near: Path,
    model: StagedModel,
    batch: Batch,
    calibration: Calibration | None,
    grain: Grain = "quota",
    codec: Codec | None = None,
) -> CostModel:
    """The cost model of a simulation. A given `calibration` takes precedence over what the experiment names; where it
    names nothing, the costs of this host do, if they were measured.

    Raises:
        UsageError: there is no calibration file, or the model cannot count this network.
    """
    if calibration is None and wanted.cost == "calibrated":
        if wanted.calibration is None:
            raise UsageError("cost: calibrated without a calibration", hint="give --calibrate-from RUN, or name a file")
        calibration = load_calibration((near.parent / wanted.calibration).resolve())
    if calibration is None and wanted.cost in ("host", None):
        calibration = host_costs.known()
        if calibration is None and wanted.cost == "host":
            raise UsageError(
                f"cost: host, but the costs of this host are not in {host_costs.host_costs_file()}",
                hint="measure them with `edgebed profile host` (a minute), or choose another cost",
            )
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
