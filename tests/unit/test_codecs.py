"""Tensors on the wire: lossless where promised, bounded error elsewhere, nothing from hostile bytes but WireError."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import safetensors.torch
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgebed.errors import UsageError, WireError
from edgebed.wire.codecs import DTYPES, decode_tensors, encode_tensors
from edgebed.wire.settings import Codec

ALL = [Codec(dtype, zstd) for dtype in DTYPES for zstd in (False, True)]
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, NaN payloads included."""
    raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def trip(tensors: dict[str, Tensor], codec: Codec) -> dict[str, Tensor]:
    return decode_tensors(encode_tensors(tensors, codec))


@given(shapes, st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_float32_is_lossless_for_every_bit_pattern(shape: tuple[int, ...], seed: int, zstd: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31 - 1, shape, generator=generator, dtype=torch.int64).to(torch.int32)
    tensors = {"x": bits.view(torch.float32), "i": bits, "long": bits.long(), "flag": bits > 0}
    back = trip(tensors, Codec("float32", zstd))
    assert list(back) == list(tensors)
    assert all(same(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("codec", ALL, ids=str)
@given(shape=shapes, seed=st.integers(0, 2**31), size=st.sampled_from([1e-30, 1e-3, 1.0, 1e3]))
@settings(max_examples=30, deadline=None)
def test_error_is_bounded(codec: Codec, shape: tuple[int, ...], seed: int, size: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size
    back = trip({"x": x}, codec)["x"]
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    if x.numel():
        others = [d for d in range(x.ndim) if d != 1] if x.ndim >= 3 else list(range(x.ndim))
        spread = x.amax(dim=others, keepdim=True) - x.amin(dim=others, keepdim=True)
        limits = {"float32": 0.0, "float16": x.abs() * 2**-11 + 2**-25, "uint8": spread / 510 * 1.01 + x.abs() * 1e-6}
        assert bool(((back - x).abs() <= limits[codec.dtype]).all())


@pytest.mark.parametrize("codec", ALL, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_what_a_format_cannot_hold_arrives_unchanged(codec: Codec, bad: float) -> None:
    x = torch.ones(2, 3, 4)
    x[1, 2, 3] = bad
    x[0, 2, 3] = -bad
    if codec.dtype == "uint8" and math.isfinite(bad):
        x[0, 2, 3] = -3.4e38
        x[1, 2, 3] = 3.4e38  # the spread overflows
    assert same(trip({"x": x}, codec)["x"], x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codec", ALL, ids=str)
def test_other_floats_keep_their_dtype(codec: Codec, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).to(dtype)
    back = trip({"x": x}, codec)["x"]
    assert back.dtype == dtype
    assert float((back.double() - x.double()).abs().max()) <= (0.02 if codec.dtype == "uint8" else 2**-11)


def test_a_constant_channel_comes_back_exactly() -> None:
    x = torch.stack([torch.full((4, 4), 0.1), torch.linspace(0, 1, 16).reshape(4, 4)])[None]
    assert torch.equal(trip({"x": x}, Codec("uint8"))["x"][:, 0], x[:, 0])


def test_channels_are_quantised_apart() -> None:
    x = torch.stack([torch.linspace(0, 1e-3, 16), torch.linspace(0, 1e3, 16)])[None]
    assert float((trip({"x": x}, Codec("uint8"))["x"] - x)[:, 0].abs().max()) < 1e-5


def test_integers_and_a_single_number_are_not_touched() -> None:
    tensors = {"labels": torch.arange(300), "scalar": torch.tensor(2.5)}
    back = trip(tensors, Codec("uint8", True))
    assert all(same(back[name], tensors[name]) for name in tensors)


def test_sizes_are_what_the_format_promises() -> None:
    x = {"x": torch.randn(8, 16, 8, 8).relu()}
    plain = {codec: len(encode_tensors(x, codec)) for codec in ALL}
    assert plain[Codec("float16")] < 0.51 * plain[Codec("float32")]
    assert plain[Codec("uint8")] < 0.26 * plain[Codec("float32")] + 200
    assert all(plain[Codec(d, True)] < plain[Codec(d)] for d in DTYPES)


def test_any_safetensors_reader_opens_it_and_we_open_any() -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.arange(7, dtype=torch.int16), "c": torch.ones(2, dtype=torch.bool)}
    theirs = safetensors.torch.load(bytes(encode_tensors(tensors, Codec())))
    ours = decode_tensors(safetensors.torch.save(tensors))
    assert all(same(theirs[name], tensors[name]) and same(ours[name], tensors[name]) for name in tensors)


def test_decoded_tensors_can_be_written_to() -> None:
    body = bytes(encode_tensors({"x": torch.zeros(3)}, Codec()))
    decode_tensors(body)["x"].add_(1)
    assert torch.equal(decode_tensors(body)["x"], torch.zeros(3))


def test_grad_and_strides_do_not_matter() -> None:
    x = torch.randn(4, 6, requires_grad=True).t()
    assert torch.equal(trip({"x": x}, Codec())["x"], x)


def test_unknown_format_and_bad_names_are_refused() -> None:
    with pytest.raises(UsageError, match="number format"):
        encode_tensors({}, Codec("float8"))
    with pytest.raises(UsageError, match="cannot be called"):
        encode_tensors({"#x": torch.ones(1)}, Codec())
    with pytest.raises(UsageError, match="complex"):
        encode_tensors({"x": torch.ones(1, dtype=torch.complex64)}, Codec())


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_are_a_wire_error(data: bytes) -> None:
    for body in (data, b"\x28\xb5\x2f\xfd" + data):
        with pytest.raises(WireError):
            decode_tensors(body)


@pytest.mark.parametrize("codec", ALL, ids=str)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=60, deadline=None)
def test_damaged_bodies_never_crash(codec: Codec, place: float, flip: int, cut: bool) -> None:
    body = bytearray(encode_tensors({"x": torch.arange(24.0).reshape(2, 3, 4), "y": torch.arange(3)}, codec))
    at = int(place * len(body))
    if cut:
        del body[at:]
        with pytest.raises(WireError):
            decode_tensors(body)
        return
    body[at] ^= flip
    with contextlib.suppress(WireError):
        decode_tensors(body)


def raw(entries: object, data: bytes = b"") -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "entries",
    [
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 400]}},
        {"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}},
        {"x": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"x": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}},
        {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in ("x", "y")},
        {"__metadata__": {"edgebed": '{"x": "F32"}'}, "x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}},
        {"__metadata__": {"edgebed": '{"x": "I64"}'}, "x": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}},
        {"__metadata__": {"edgebed": "["}},
        {"__metadata__": []},
        [],
    ],
)
def test_lying_headers_are_a_wire_error(entries: object) -> None:
    with pytest.raises(WireError):
        decode_tensors(raw(entries, bytes(8)))


def test_a_quantised_tensor_whose_scale_does_not_fit_is_a_wire_error() -> None:
    meta = {"edgebed": '{"x": "F32"}'}
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    wide = {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}
    with pytest.raises(WireError, match="restored"):
        decode_tensors(raw({"__metadata__": meta, "x": entry, "#scale:x": wide, "#low:x": wide}, bytes(40)))


def test_a_decompression_bomb_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(50 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(WireError, match="at most"):
        decode_tensors(bomb, max_bytes=1 << 20)
    sizeless = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(100))
    with pytest.raises(WireError, match="unpack"):
        decode_tensors(sizeless)
