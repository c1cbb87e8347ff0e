"""What a device does to its features before they leave it: distance correlation and patch shuffling. Pure.

Only the device knows its setting (DTFL: "The server lacks information about the clients' α values, which can vary
between clients"): the agent takes `Privacy` from its own shard file, and no assignment carries it. Device halves apply
it through `Guard`; without a setting, a guard changes no bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from edgebed.errors import UsageError
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Privacy


class Guard:
    """The device's own choice, over the batches of one task. It does nothing where no features are uploaded.

    Call `upload` once for each batch, in order: the patches of every batch are shuffled anew.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._privacy = assignment.privacy if "features" in assignment.uploads else Privacy()
        self._seed, self._batch = assignment.seed, 0
        self._order: Tensor | None = None

    def upload(self, z: Tensor) -> Tensor:
        """The features as they leave: detached, shuffled. z (B, C, H, W), or any shape where nothing is shuffled.

        The device's own head goes on with the unshuffled z: the paper shuffles what is sent ("intermediate data"), and
        a head that pools over the map would see no difference **[ours]**.
        """
        if not self._privacy.patch_shuffle:
            return z.detach()
        side = patch_side(tuple(z.shape[1:]), self._privacy.patch_shuffle)
        patches = (z.shape[2] // side) * (z.shape[3] // side)
        self._order = patch_order(len(z), patches, self._privacy.secret, self._seed, self._batch)
        self._batch += 1
        return shuffle_patches(z.detach(), side, self._order)

    def returned(self, gradient: Tensor) -> Tensor:
        """The gradient of the last upload, in the order of the device's own features."""
        if self._order is None:
            return gradient
        side = patch_side(tuple(gradient.shape[1:]), self._privacy.patch_shuffle)
        return shuffle_patches(gradient, side, self._order.argsort(1))

    def loss(self, own: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """(1 - α) own + α DCor(x, z): what a device with a loss of its own minimises (DTFL, "Privacy discussions")."""
        alpha = self._privacy.dcor_alpha
        return (1 - alpha) * own + alpha * distance_correlation(x, z) if alpha else own

    def backward(self, x: Tensor, z: Tensor, gradient: Tensor) -> None:
        """Back-propagate the server's gradient of z, weighed and with DCor's added as in `loss` **[ours]**."""
        alpha = self._privacy.dcor_alpha
        if alpha and z.requires_grad:
            own = alpha * distance_correlation(x, z)
            torch.autograd.backward([z, own], [(1 - alpha) * gradient, torch.ones_like(own)])
        else:
            torch.autograd.backward(z, gradient)


# ---- distance correlation --------------------------------------------------------------------------------------------


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Sample distance correlation of a batch, between 0 and 1 (Székely, Rizzo and Bakirov 2007; Vepakomma et al. 2020):
    dCov / sqrt(dVar(x) dVar(z)), from Euclidean distances over the flattened samples.

    Differentiable in z; x is data and gets no gradient. Where all samples of x or of z are equal it is 0, with
    gradient 0.

    Args:
        x: (B, ...).
        z: (B, ...), of any shape.
    """
    a, b = _centred(_distances(x.detach())), _centred(_distances(z))
    covariance, scale = (a * b).mean(), (a * a).mean().sqrt() * _root((b * b).mean())
    flat = scale <= torch.finfo(z.dtype).tiny
    return _root((covariance / scale.masked_fill(flat, 1)).masked_fill(flat, 0))


def _distances(v: Tensor) -> Tensor:
    """Euclidean distances, (B, ...) -> (B, B), from scalar products: many times faster than from differences, and about
    as exact once the mean is subtracted. Values that are 0 up to rounding become 0, because the slope of the root is
    infinite there."""
    v = v.flatten(1)
    v = v - v.mean(0, keepdim=True)
    norms = v.square().sum(1)
    squared = norms[:, None] + norms[None, :] - 2 * v @ v.T
    floor = 8 * torch.finfo(v.dtype).eps * norms.detach().max()
    return _root(squared.masked_fill(torch.eye(len(v), dtype=torch.bool, device=v.device), 0), floor)


def _centred(d: Tensor) -> Tensor:
    return d - d.mean(0, keepdim=True) - d.mean(1, keepdim=True) + d.mean()


def _root(value: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    """The square root; 0 with gradient 0 for all that is not above `floor`."""
    low = value <= floor
    return value.masked_fill(low, 1).sqrt().masked_fill(low, 0)


# ---- patch shuffling -------------------------------------------------------------------------------------------------


def patch_side(shape: tuple[int, ...], wanted: int) -> int:
    """The side of the patches of features (C, H, W): the largest up to `wanted` that tiles the map and gives two
    patches at least, so that a cut with smaller maps is shuffled too **[ours]**.

    Raises:
        UsageError: the features have no two places, so nothing could be shuffled; they must not leave as they are.
    """
    sides = [side for side in range(1, wanted + 1) if len(shape) == 3 and not shape[1] % side and not shape[2] % side]
    fitting = [side for side in sides if side < max(shape[1:])]
    if not fitting:
        raise UsageError(
            f"features of shape {shape} have no patches to shuffle",
            hint="cut the model where its features are maps, or choose dcor_alpha instead of patch_shuffle",
        )
    return fitting[-1]


def patch_order(samples: int, patches: int, secret: int, seed: int, batch: int) -> Tensor:
    """(samples, patches) int64: for every sample of a batch, which patch comes where.

    `seed` is the assignment's, which the server knows; `secret` is the device's. Sorted Philox numbers, for NumPy
    promises that those never change, so a run repeats to the bit.
    """
    key = np.array([secret % 2**64, seed % 2**64], dtype=np.uint64)
    numbers = np.random.Philox(key=key, counter=[0, batch, 0, 0]).random_raw(samples * patches)
    return torch.from_numpy(np.argsort(numbers.reshape(samples, patches), axis=1, kind="stable"))


def shuffle_patches(z: Tensor, side: int, order: Tensor) -> Tensor:
    """z (B, C, H, W) with the square patches of each sample rearranged: place i gets patch order[b, i], in all
    channels. `order.argsort(1)` puts them back (Yao et al. 2022)."""
    samples, channels, height, width = z.shape
    rows, columns = height // side, width // side
    patches = z.reshape(samples, channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    flat = patches.reshape(samples, rows * columns, channels, side, side)
    moved = flat[torch.arange(samples)[:, None], order].reshape(samples, rows, columns, channels, side, side)
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(z.shape)
