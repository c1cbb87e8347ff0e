"""The frozen weights of a run, which a device gets once and keeps: which of them each device has."""

from __future__ import annotations

import msgspec

from edgebed.errors import UsageError
from edgebed.models.staged import StagedModel, Weights, digest


class FrozenBase:
    """What of the frozen weights the devices keep. A device that is not known to keep them gets them with its task.

    Args:
        model: with the weights that the run starts from; None: nothing is frozen.

    Attributes:
        sha256: of the frozen weights; unset where there are none.
        kept: by device, the agent that keeps some of them, and their names.
    """

    def __init__(self, model: StagedModel | None = None) -> None:
        weights = {} if model is None else model.weights()
        frozen = {name: value for name, value in weights.items() if model is not None and name in model.frozen}
        self.sha256, self._frozen = digest(frozen) if frozen else msgspec.UNSET, frozenset(frozen)
        self.kept: dict[str, tuple[str, list[str]]] = {}
        self._sent: dict[str, tuple[str, list[str]]] = {}

    def check(self, weights: Weights) -> None:
        """Raises UsageError where a run that goes on with these weights began with other frozen ones."""
        if self._frozen and digest({name: weights[name] for name in self._frozen & weights.keys()}) != self.sha256:
            raise UsageError(
                "the frozen weights are not those that the run began with",
                hint="put the file that `weights` names back as it was, or run the experiment anew",
            )

    def to_send(self, device: str, agent: str, tensors: Weights) -> Weights:
        """Those of a task's tensors that the device's agent does not keep."""
        if not self._frozen:
            return tensors
        keeper, names = self.kept.get(device, ("", []))
        has = self._frozen & set(names) if keeper == agent else frozenset()
        self._sent[device] = agent, sorted(has | (self._frozen & tensors.keys()))
        return {name: value for name, value in tensors.items() if name not in has}

    def ended(self, device: str, how: str, *, delivered: bool) -> None:
        """The round of the device's task is over. `how`: as in `machine.Leave`, "" where its work is merged. A device
        that could not do its task may have lost what it should keep, and gets everything again."""
        sent = self._sent.pop(device, None)
        if how == "failed":
            self.kept.pop(device, None)
        elif delivered and sent is not None:
            self.kept[device] = sent
