"""What each cut of a run's model costs: as recorded, as the platform knows it, or as it is measured here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgebed.device.pieces import batch_s, seconds
from edgebed.methods.base import CutCost
from edgebed.models.learning import task_at
from orchestrator.records.reader import read
from orchestrator.records.types import CutProfiled
from orchestrator.runs.platform import Platform, RunRequest


def recorded_costs(records: Path) -> dict[int, CutCost]:
    """As the first session of a run has recorded them."""
    found = [record for record in read(records) if isinstance(record, CutProfiled)]
    names = CutCost.__struct_fields__
    return {record.cut: CutCost(**{name: getattr(record, name) for name in names}) for record in found}


async def cut_costs(platform: Platform, request: RunRequest) -> dict[int, CutCost]:
    """Those that the platform knows, or else measures."""
    model, training = request.model, request.whole.experiment.training
    if known := platform.known_costs(model):
        return known
    batch = request.prepared.sample(training.batch_size)
    settings = (training.batch_size, training.codec, training.optimizer, batch)
    measured = await platform.profile(model, model.cuts_with_head, *settings)
    return {cut: _on_reference(cost, platform, request) for cut, cost in measured.items()}


def _on_reference(cost: CutCost, platform: Platform, request: RunRequest) -> CutCost:
    """The cost with the seconds of the reference whose time devices and server keep, if they do."""
    experiment, method, device = request.whole.experiment, request.method, platform.fleet.names[0]
    training, uploads = experiment.training, ("features", "weights")
    schedule = {"batch_size": training.batch_size, "optimizer": training.optimizer, "codec": training.codec}
    spec, learns = method.model_spec(experiment.model), request.prepared.task
    task = task_at(device, spec, learns, cost.cut, "head", uploads=uploads, **schedule)
    device_s = batch_s(platform.costs(device, task), training.batch_size)
    if device_s is None:
        return cost
    held = platform.held_server
    step = None if held is None else held.costs(method.name, task).get("step")
    slot_cpus = platform.fleet.spec.slot_cpus / platform.fleet.dilation
    server_s = cost.server_s if step is None else seconds(step, training.batch_size) / slot_cpus
    return msgspec.structs.replace(cost, device_s=device_s, server_s=server_s)
