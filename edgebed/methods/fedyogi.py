"""FedYogi: FedAvg's average as a gradient for an adaptive server optimizer (Reddi et al. 2020, algorithm 2;
papers.md §1.4). Pure.

Δ = avg(w_k) − w;  m ← β1 m + (1−β1) Δ;  v ← v − (1−β2) Δ² sign(v − Δ²);  w ← w + η m / (√v + τ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from edgebed.methods.base import Context, Contribution
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import Aggregate, merge_by_name
from edgebed.models.staged import Weights

Beta = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class FedYogi(FedAvg):
    """Devices work as in FedAvg; only the server's step differs.

    The server optimizer moves parameters. Batch norm's running statistics are no parameters and follow the average as
    in FedAvg, its integer counters take the maximum **[ours]**. A parameter that nobody trained keeps its moments.
    """

    name = "fedyogi"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`lr` is the server's η, `tau` the adaptivity τ; the devices' optimizer is the experiment's."""

        lr: Positive = 0.01
        beta1: Beta = 0.9
        beta2: Beta = 0.99
        tau: Positive = 0.001
        aggregate: Aggregate = "samples"

    def learning(self) -> dict[str, object]:
        return {"as": "fedyogi", **msgspec.structs.asdict(self.options)}

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.parameters = {name for name, _ in context.model.named_parameters()}
        self.m: Weights = {}
        self.v: Weights = {}

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        averaged = merge_by_name(weights, contributions, self.options.aggregate)
        trained = {name for part in contributions for name in part.weights} & self.parameters
        return {
            name: self._step(name, weights[name], mean) if name in trained else mean for name, mean in averaged.items()
        }

    def _step(self, name: str, w: Tensor, mean: Tensor) -> Tensor:
        """Yogi's step of one parameter. v starts at τ² (the paper asks for v ≥ τ²), m at 0 **[ours]**."""
        o = self.options
        delta = mean - w
        m = self.m.get(name, torch.zeros_like(w))
        v = self.v.get(name, torch.full_like(w, o.tau**2))
        self.m[name] = m = o.beta1 * m + (1 - o.beta1) * delta
        square = delta * delta
        self.v[name] = v = v - (1 - o.beta2) * square * torch.sign(v - square)
        moved: Tensor = w + o.lr * m / (v.sqrt() + o.tau)
        return moved

    def tensors(self) -> Weights:
        return {f"{moment}.{name}": value for moment in ("m", "v") for name, value in getattr(self, moment).items()}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        for moment in ("m", "v"):
            kept = {n.removeprefix(f"{moment}."): value for n, value in tensors.items() if n.startswith(f"{moment}.")}
            setattr(self, moment, kept)
