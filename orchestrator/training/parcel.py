"""Passes structs and tensors between two processes of this host: a socket carries the descriptor of shared memory.

A parcel is one anonymous file in memory: the length of the head (u64, little endian), the head (msgpack), then the
tensors, each at a multiple of 64 bytes. The sender copies the tensors once; the receiver maps the file, and its tensors
are views of it. The memory is freed when the last of them is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor

from edgebed.models.staged import Weights

ALIGNED = 64
"""Bytes. Every tensor begins at a multiple of it, as in memory that torch allocates."""

Groups = Mapping[str, Weights]
"""Tensors by name in groups, such as devices."""

H = TypeVar("H")


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor is in a parcel, in bytes from the end of the head."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    head: msgspec.Raw
    groups: tuple[str, ...]  # also those without a tensor
    places: tuple[Place, ...]


class Parcel(msgspec.Struct, Generic[H]):
    """What has arrived."""

    head: H
    groups: dict[str, Weights]


def send(to: socket.socket, head: msgspec.Struct, groups: Groups | None = None) -> None:
    """Copy the tensors into shared memory and send it. Waits while the socket's queue is full. Raises OSError: the
    other process has ended, or memory is short."""
    file = os.memfd_create("edgebed-parcel", os.MFD_CLOEXEC)
    try:
        _fill(file, head, groups or {})
        socket.send_fds(to, [b"p"], [file])
    finally:
        os.close(file)


def receive(at: socket.socket, kind: type[H] | Any, flags: int = 0) -> Parcel[H] | None:
    """The next parcel, with a head of this type; None if the other process has closed the socket. `flags`: of
    `recvmsg`; with `MSG_DONTWAIT` it raises BlockingIOError where nothing has arrived. Raises OSError: this process may
    have no more open files."""
    data, files, _, _ = socket.recv_fds(at, 1, 1, flags | socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    if not files:  # the kernel could not hand it over
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        memory = mmap.mmap(files[0], os.fstat(files[0]).st_size)
    finally:
        os.close(files[0])
    size = int.from_bytes(memory[:8], "little")
    packed = msgspec.msgpack.decode(memory[8 : 8 + size], type=_Packed)
    start = _aligned(8 + size)
    groups: dict[str, Weights] = {name: {} for name in packed.groups}
    for place in packed.places:
        groups[place.group][place.name] = _view(memory, start, place)
    return Parcel(msgspec.msgpack.decode(packed.head, type=kind), groups)


def _fill(file: int, head: msgspec.Struct, groups: Groups) -> None:
    tensors = [(g, name, t.detach().contiguous()) for g, members in groups.items() for name, t in members.items()]
    places, end = [], 0
    for group, name, tensor in tensors:
        places.append(Place(group, name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end = _aligned(end + tensor.nbytes)
    packed = msgspec.msgpack.encode(_Packed(msgspec.Raw(msgspec.msgpack.encode(head)), tuple(groups), tuple(places)))
    start = _aligned(8 + len(packed))
    os.ftruncate(file, start + end)
    os.pwrite(file, len(packed).to_bytes(8, "little") + packed, 0)
    for place, (_, _, tensor) in zip(places, tensors, strict=True):  # written, not mapped: a page fault costs more
        _write(file, tensor, start + place.offset)


def _write(file: int, tensor: Tensor, offset: int) -> None:
    if not tensor.numel():
        return
    left: memoryview = tensor.cpu().reshape(-1).view(torch.uint8).numpy().data
    while left:
        done = os.pwrite(file, left, offset)
        left, offset = left[done:], offset + done


def _view(memory: mmap.mmap, start: int, place: Place) -> Tensor:
    dtype = getattr(torch, place.dtype)
    count = torch.Size(place.shape).numel()
    if not count:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start + place.offset).reshape(place.shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
