"""The weights with which a run begins, from a safetensors file: pre-trained ones, or those of another run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from safetensors import SafetensorError, safe_open

from edgebed.errors import UsageError
from edgebed.methods.parts.aggregation import unfit
from edgebed.models.staged import StagedModel, without_prefix

WEIGHTS = "weights/"
"""Prefix of the model's weights in the checkpoint of a run."""


def begin_with(model: StagedModel, path: Path) -> None:
    """Give the model the tensors of a file. Each has the name of a weight, which may lack the stage, as in a network's
    `state_dict`; or the file is the checkpoint of a run. Weights that it does not hold stay as they are.

    Raises:
        UsageError: no such file, or a tensor that is no weight of the model, has another shape, or cannot be trained.
    """
    staged = {name: name.partition(".")[2] for name in model.stages(0, len(model)).state_dict()}
    times = Counter(staged.values())  # without its stage a name may be that of several weights, or of one of a head
    own = {short: name for name, short in staged.items() if times[short] == 1} | {n: n for n in model.state_dict()}
    try:
        if not path.is_file():  # opening a pipe would wait for its other end
            raise FileNotFoundError("there is no such file")
        with safe_open(path, "pt") as file:
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} is no safetensors file: {error}", hint="save the weights as one") from None
    found = without_prefix(found, WEIGHTS) or found
    if strange := sorted(found.keys() - own.keys()):
        raise UsageError(
            f"{path}: {strange[0]} is no weight of the model", hint=f"it has, for example, {', '.join([*own][:2])}"
        )
    state = model.state_dict()
    for key, value in found.items():  # copying would cast it: whole numbers of a quantised network lack their scale
        eight_bits = value.is_floating_point() and value.dtype.itemsize == 1  # lacks its scale, too
        if eight_bits or value.is_floating_point() != state[own[key]].is_floating_point():
            raise UsageError(
                f"{path}: {key} holds {str(value.dtype).removeprefix('torch.')}", hint="save it as float32"
            )
    try:
        model.load({own[key]: value for key, value in found.items()})
    except UsageError as error:  # another shape
        raise UsageError(f"{path}: {error}", hint="remove it from the file; the seed draws it then") from None
    if why := unfit(model.weights()):
        raise UsageError(f"{path}: {why}", hint="save weights that can be trained")
