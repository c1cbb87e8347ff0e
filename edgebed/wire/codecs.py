"""Named tensors to bytes and back: the safetensors format, three number formats, with or without zstd. Pure.

The bytes describe themselves: what was encoded stands in the safetensors metadata, and a zstd frame is known by its
first four bytes (as a safetensors header length they would be 4 GB). Without zstd, any safetensors reader can open
them. The format is written and parsed here, and not by the safetensors package, because that saves three copies of a
26 MB batch: encoding makes one, decoding none (the tensors are views of the received bytes).

| dtype   | floating tensors become                                       | error                                   |
|---------|---------------------------------------------------------------|-----------------------------------------|
| float32 | themselves                                                    | none, to the bit                        |
| float16 | float16                                                       | 2^-11 relative, 2^-25 absolute          |
| uint8   | 0..255 between the least and greatest value of each channel    | half a step: (greatest - least) / 510   |

A channel is dim 1 of a tensor of three or more dimensions, else the whole tensor. A tensor that the format cannot hold
(NaN, infinite or beyond the range) travels unchanged, so nothing turns silently into a number it was not. Integers and
booleans are never touched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
import zstandard
from torch import Tensor

from edgebed.errors import UsageError, WireError, printable
from edgebed.wire.settings import Codec

DTYPES = ("float32", "float16", "uint8")
LOSSLESS = Codec()
"""For weights, whatever the codec of the run: float32, not compressed."""
MAX_DECODED = 2 << 30
"""Bytes a body may have after decompression, unless the caller says otherwise."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_HEADER = 16 << 20
_MAX_DIMENSIONS = 64  # as torch
_MAX_LENGTH = 1 << 48
_HALF_MAX = 65504.0
_TO_NAME = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_FROM_NAME = {name: dtype for dtype, name in _TO_NAME.items()}


class _Entry(msgspec.Struct):
    """One tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_header_decoder = msgspec.json.Decoder(dict[str, dict[str, Any]])


def encode_tensors(tensors: Mapping[str, Tensor], codec: Codec) -> bytes | bytearray:
    """The tensors as one body.

    Args:
        tensors: by name; any shape (also empty and 0-d), on any torch device; names must not start with "#".
        codec: number format and compression.

    Raises:
        UsageError: unknown number format, a name that is taken, or a dtype the format cannot write.
    """
    if codec.dtype not in DTYPES:
        raise UsageError(f"there is no number format {codec.dtype!r}", hint=f"choose one of: {', '.join(DTYPES)}")
    plain: dict[str, Tensor] = {}
    formats: dict[str, str] = {}
    for name, given in tensors.items():
        tensor = given.detach().cpu()
        if name.startswith("#") or name == "__metadata__":
            raise UsageError(f"a tensor cannot be called {name!r}", hint="choose a name that does not start with '#'")
        parts = _convert(tensor, codec.dtype)
        plain |= {f"#{part}:{name}" if part else name: value for part, value in parts.items()}
        if parts[""].dtype != tensor.dtype:
            formats[name] = _TO_NAME[tensor.dtype]
    body = _write(plain, formats)
    return zstandard.ZstdCompressor(level=1).compress(body) if codec.zstd else body


def decode_tensors(data: bytes | bytearray | memoryview, *, max_bytes: int = MAX_DECODED) -> dict[str, Tensor]:
    """The tensors of a body that `encode_tensors` made, in their first dtype and order.

    Tensors that were not converted are views of `data` where it is writable (a bytearray): do not reuse it.

    Args:
        max_bytes: of the body without compression, and of all tensors in their first dtype. It is looked at before
            anything of that size is made.

    Raises:
        WireError: not such a body, or one that unpacks to more than `max_bytes`.
    """
    view = memoryview(data).cast("B")
    if view[:4] == _ZSTD_MAGIC:
        view = _decompress(view, max_bytes)
    elif view.readonly:
        view = memoryview(bytearray(view))
    plain, formats = _read(view)
    names = [name for name in plain if not name.startswith("#")]
    restored = sum(plain[name].numel() * _first_dtype(name, plain, formats.get(name)).itemsize for name in names)
    if restored > max_bytes:
        raise WireError(f"the tensors would take {restored} bytes; at most {max_bytes} are allowed")
    return {name: _restore(name, plain, formats.get(name)) for name in names}


# ---- number formats --------------------------------------------------------------------------------------------------


def _convert(x: Tensor, dtype: str) -> dict[str, Tensor]:
    """`x` in the number format: itself under "", what is needed to restore it under its own names."""
    if not x.is_floating_point() or x.numel() == 0 or dtype == "float32" or x.dtype not in _TO_NAME:
        return {"": x}
    if dtype == "float16":
        low, high = torch.aminmax(x)  # NaN if there is one: then both comparisons fail
        fits = x.dtype in (torch.float32, torch.float64) and bool(low >= -_HALF_MAX) and bool(high <= _HALF_MAX)
        return {"": x.half() if fits else x}
    return _quantise(x)


def _quantise(x: Tensor) -> dict[str, Tensor]:
    wide = x if x.dtype == torch.float64 else x.float()
    others = [d for d in range(x.ndim) if d != 1] if x.ndim >= 3 else list(range(x.ndim))
    low = wide.amin(dim=others, keepdim=True)
    scale = (wide.amax(dim=others, keepdim=True) - low) / 255
    if not bool(torch.isfinite(scale).all()) or not bool(torch.isfinite(low).all()):
        return {"": x}
    step = torch.where(scale > 0, scale, torch.ones_like(scale))  # a constant channel is its own least value
    levels = (wide - low).div_(step).round_().clamp_(0, 255).to(torch.uint8)
    return {"": levels, "scale": scale, "low": low}


def _first_dtype(name: str, plain: Mapping[str, Tensor], dtype: str | None) -> torch.dtype:
    """What the tensor was before it was converted, as the body claims it."""
    if dtype is None:
        return plain[name].dtype
    target = _FROM_NAME.get(dtype)
    if target is None or not target.is_floating_point:
        raise WireError(f"tensor {printable(name)!r} claims to have been {printable(dtype)!r}")
    return target


def _restore(name: str, plain: Mapping[str, Tensor], dtype: str | None) -> Tensor:
    x, target = plain[name], _first_dtype(name, plain, dtype)
    if dtype is None:
        return x
    if x.dtype == torch.float16:
        return x.to(target)
    scale, low = plain.get(f"#scale:{name}"), plain.get(f"#low:{name}")
    wide = torch.float64 if target == torch.float64 else torch.float32  # as `_quantise` writes them
    if scale is None or low is None or x.dtype != torch.uint8 or not scale.dtype == low.dtype == wide:
        raise WireError(f"tensor {printable(name)!r} cannot be restored: its scale is missing or of another dtype")
    try:
        return x.to(scale.dtype).mul_(scale.expand(x.shape)).add_(low.expand(x.shape)).to(target)
    except RuntimeError as error:
        raise WireError(f"tensor {printable(name)!r} cannot be restored: {printable(str(error))}") from None


# ---- the safetensors format ------------------------------------------------------------------------------------------


def _write(tensors: Mapping[str, Tensor], formats: Mapping[str, str]) -> bytearray:
    """Header length (u64, little endian), JSON header padded to 8 bytes, then the tensors, widest dtype first so that
    each is aligned. The JSON keeps the order of the names."""
    flat = {name: t.contiguous().reshape(-1) for name, t in tensors.items()}
    entries: dict[str, object] = {"__metadata__": {"edgebed": json.dumps(formats)}}
    entries |= dict.fromkeys(flat)
    order = sorted(flat, key=lambda name: -flat[name].element_size())
    offset = 0
    for name in order:
        if flat[name].dtype not in _TO_NAME:
            raise UsageError(f"tensor {name!r} has dtype {flat[name].dtype}", hint="convert it to a real number type")
        size = flat[name].numel() * flat[name].element_size()
        shape = list(tensors[name].shape)
        dtype = _TO_NAME[flat[name].dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    parts = [flat[name].cpu().view(torch.uint8).numpy().data for name in order if flat[name].numel()]
    return bytearray().join([len(header).to_bytes(8, "little"), header, *parts])


def _read(view: memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > min(_MAX_HEADER, len(view) - 8):
        raise WireError(f"not a body of tensors: {len(view)} bytes, of which {size} should be the header")
    try:
        entries = _header_decoder.decode(view[8 : 8 + size])
        metadata = entries.pop("__metadata__", {})
        formats = msgspec.json.decode(metadata.get("edgebed", "{}"), type=dict[str, str])
        data = view[8 + size :]
        typed = {name: msgspec.convert(entry, _Entry) for name, entry in entries.items()}
        if sum(entry.data_offsets[1] - entry.data_offsets[0] for entry in typed.values()) > len(data):
            raise WireError("not a body of tensors: they overlap")
        return {name: _tensor(name, entry, data) for name, entry in typed.items()}, formats
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise WireError(f"not a body of tensors: {printable(str(error))}") from None


def _tensor(name: str, entry: _Entry, data: memoryview) -> Tensor:
    """A view of `data`; every field of the entry is checked first."""
    dtype = _FROM_NAME.get(entry.dtype)
    begin, end = entry.data_offsets
    # The shape is looked at before its product is taken: that of a hundred thousand large numbers takes seconds.
    possible = len(entry.shape) <= _MAX_DIMENSIONS and all(0 <= n <= _MAX_LENGTH for n in entry.shape)
    if dtype is None or not possible or not 0 <= begin <= end <= len(data):
        raise WireError(f"tensor {printable(name)!r} has an impossible dtype, shape or place: {printable(str(entry))}")
    count = math.prod(entry.shape)
    if count * dtype.itemsize != end - begin:
        raise WireError(f"tensor {printable(name)!r} of shape {entry.shape} does not fill its {end - begin} bytes")
    try:
        if not count:
            return torch.empty(entry.shape, dtype=dtype)
        return torch.frombuffer(data[begin:end], dtype=dtype).reshape(entry.shape)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise WireError(f"tensor {printable(name)!r}: {error}") from None


def _decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Takes only as much memory as the data really has, whatever size the frame declares."""
    try:
        declared = zstandard.get_frame_parameters(view).content_size
        if declared in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR) or declared > max_bytes:
            raise WireError(f"the compressed body would unpack to {declared} bytes; at most {max_bytes} are allowed")
        target = np.empty(declared, np.uint8)
        with zstandard.ZstdDecompressor().stream_reader(view) as reader:
            filled = 0
            while got := reader.readinto(target[filled:].data):
                filled += got
    except zstandard.ZstdError as error:
        raise WireError(f"the compressed body is damaged: {error}") from None
    if filled != declared:
        raise WireError(f"the compressed body is cut short: {filled} of {declared} bytes")
    return target.data
