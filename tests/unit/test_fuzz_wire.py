"""Damaged, invented and hostile bytes at every decoder: what comes out is a value or an error of this project."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from edgebed.errors import EdgebedError, UsageError, WireError
from edgebed.wire import fork_protocol
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.frames import Mark, chunk_count, pack_chunk, pack_mark, unpack
from edgebed.wire.messages import (
    Assignment,
    Configure,
    Credit,
    Presence,
    Query,
    Refuse,
    Report,
    Status,
    Task,
    Update,
    Upload,
    decode_control,
    decode_header,
    encode,
)
from edgebed.wire.piece_times import Phase
from edgebed.wire.settings import Codec
from orchestrator.records import reader, types
from orchestrator.rounds.progress import Progress
from orchestrator.runs.folder import RunFolder

EXAMPLES = 150
MOST = 1 << 20
fuzz = settings(max_examples=EXAMPLES, deadline=None)

# ---- hostile bytes ----

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400]),
    st.floats(),
    st.booleans(),
    st.none(),
)
TEXTS = st.one_of(st.text(max_size=20), st.just("\x00"), st.just("x" * 5000))
VALUES = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.binary(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=12,
)
EXTREME = [b * 200_000 for b in (b"[", b'{"a":', b"\x91", b"\x81\xa1a")] + [
    b'{"type":"forked","device":"d","pid":%s}' % (b"9" * 9000)
]
"""Nested deeper than a stack; an integer of more digits than Python converts."""


def damaged(valid: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of some valid messages with bytes changed, left out, put in, repeated or cut off."""

    @st.composite
    def draw_damage(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(valid)))
        for _ in range(draw(st.integers(1, 4))):
            place = draw(st.integers(0, len(data)))
            stop = min(len(data), place + draw(st.integers(0, 8)))
            data[place:stop] = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[place:stop]) * 2)))
        return bytes(data)

    return draw_damage()


def hostile(valid: list[bytes], encode_value: Callable[[Any], bytes]) -> st.SearchStrategy[bytes]:
    """Noise, well-formed nonsense, valid messages with some damage, and extremes."""

    def written(value: Any) -> bytes:
        try:
            return encode_value(value)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
            return repr(value).encode("utf-8", "surrogatepass")

    return st.one_of(
        st.binary(max_size=200),
        VALUES.map(written),
        damaged(valid),
        st.sampled_from(range(len(EXTREME))).map(EXTREME.__getitem__),
    )


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=repr).encode("utf-8", "surrogatepass")


def failure(call: Callable[[], object]) -> EdgebedError | None:
    """The error of this project that a call ends with, if it does; any other goes through."""
    try:
        call()
    except EdgebedError as error:
        return error
    return None


def refused_or(decode: Callable[[bytes], object], data: bytes) -> None:
    """It is decoded, or refused with an error of this project that fits a line of a log."""
    error = failure(lambda: decode(data))
    assert error is None or (isinstance(error, WireError) and len(str(error)) < 2000)


# ---- messages ----

PHASES = (Phase("compute", "t", 1, 2, 3), Phase("blocked", "t", 2, 9))
CONTROL = [
    encode(Status("dev-1", "x" * 32, 3, "t", "compute", 17, 1.5, 10**12, PHASES, 4)),
    encode(Presence("dev-1", "i", True, 1, 100, (10, 90), "ab" * 32, {"kernel": "6.1"})),
    encode(Credit("dev-1", "orchestrator", "a-1", 3, 4)),
    encode(Refuse("dev-1", "orchestrator", "a-1", "too large")),
    encode(Query("dev-1", "orchestrator", "a-1", 5)),
    encode(Configure(1, 2, 5.0, True, 0.5, 10**7, 10**7)),
]
REPORT = Report(100, 4, 0.5, 1.0, 0.9, None, 10, 0.1, 20, 0.2, 0.0, notes={"train_from": 2.0})
HEADERS = [
    encode(Task("run/0/dev-1/1", "run", 0, Assignment("dev-1", {"name": "m"}, 10, (3, 32, 32), 2, "head"))),
    encode(Upload("dev-1", "t", 3, 100)),
    encode(Update("dev-1", "t", REPORT)),
]
FRAMES = [
    pack_chunk("a-1", "", 0, HEADERS[1], memoryview(bytes(100)), 64),
    pack_chunk("a-1", "a-0", 1, HEADERS[1], memoryview(bytes(100)), 64),
    pack_mark(Mark("a-1", "", 5, chunk_count(100, 64), 3)),
]


@fuzz
@given(hostile(CONTROL, msgspec.msgpack.encode))
def test_control_messages(data: bytes) -> None:
    refused_or(decode_control, data)


@fuzz
@given(hostile(HEADERS, msgspec.msgpack.encode))
def test_headers(data: bytes) -> None:
    refused_or(decode_header, data)


@fuzz
@given(hostile(FRAMES, msgspec.msgpack.encode))
@example(msgspec.msgpack.encode(["x" * 5000]))
def test_frames(data: bytes) -> None:
    refused_or(unpack, data)


FORKS = [
    fork_protocol.encode(fork_protocol.Fork("dev-1", ("a", "b"), "mqtt://x", "log", "netns", ("cgroup",))),
    fork_protocol.encode(fork_protocol.Forked("dev-1", 77)),
    fork_protocol.encode(fork_protocol.Exited("dev-1", 77, "killed")),
]


@fuzz
@given(hostile(FORKS, as_json))
@example(b'{"type":"exited","device":"\xff","pid":1,"why":""}\n')
def test_the_fork_channel(data: bytes) -> None:
    refused_or(fork_protocol.decode, data)


# ---- bodies ----

TENSORS = {"features": torch.randn(4, 3, 2, 2), "labels": torch.arange(4), "x": torch.zeros(0, 5), "s": torch.ones(())}
BODIES = [
    bytes(encode_tensors(TENSORS, Codec(dtype, zstd)))
    for dtype in ("float32", "float16", "uint8")
    for zstd in (False, True)
]  # type: ignore[arg-type]
LENGTHS = st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**48, 2**62, 2**63, 2**70]))
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "F16", "U8", "I64", "BOOL", "F8", 3]),
        "shape": st.lists(LENGTHS, max_size=6),
        "data_offsets": st.one_of(st.tuples(st.integers(-1, 200), st.integers(-1, 200)), st.lists(LENGTHS, max_size=3)),
    }
)
NAMES = st.sampled_from(["x", "#scale:x", "#low:x", "", "y" * 3000])
FORMATS = st.one_of(st.dictionaries(st.sampled_from(["x", ""]), st.sampled_from(["F32", "F64", "I64", "?"])), VALUES)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A header of the format whose entries lie."""
    entries: dict[str, Any] = draw(st.dictionaries(NAMES, st.one_of(ENTRY, VALUES), max_size=4))
    if draw(st.booleans()):
        entries["__metadata__"] = {"edgebed": as_json(draw(FORMATS)).decode("utf-8", "replace")}
    header = as_json(entries)
    size = draw(st.one_of(st.just(len(header)), st.integers(0, 2**64 - 1)))
    body = size.to_bytes(8, "little") + header + bytes(draw(st.integers(0, 256)))
    return zstandard.ZstdCompressor(level=1).compress(body) if draw(st.booleans()) else body


def decode_bounded(data: bytes) -> None:
    tensors = decode_tensors(data, max_bytes=MOST)
    assert sum(value.nbytes for value in tensors.values()) <= max(MOST, len(data))


@fuzz
@given(st.one_of(hostile(BODIES, as_json), bodies()))
def test_bodies(data: bytes) -> None:
    refused_or(decode_bounded, data)


def body(entries: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


def test_a_giant_shape_is_refused_before_its_product_is_taken() -> None:
    """1.7 MB of shape took 17 s."""
    entry = {"dtype": "F32", "shape": [2**62] * 85_000, "data_offsets": [0, 4]}
    with pytest.raises(WireError, match="impossible"):
        decode_tensors(body({"x": entry}, bytes(4)))


def test_what_a_compressed_body_would_become_is_counted_before_it_is_made() -> None:
    """A few kilobytes of zeros became 1.8 GiB: bytes that unpack to 2 GiB, and eight times that as float64."""
    count = MOST // 4
    entries = {
        "__metadata__": {"edgebed": '{"x": "F64"}'},
        "x": {"dtype": "U8", "shape": [count], "data_offsets": [16, 16 + count]},
        "#scale:x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        "#low:x": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]},
    }
    bomb = zstandard.ZstdCompressor(level=1).compress(body(entries, bytes(count + 16)))
    assert len(bomb) < 1000
    with pytest.raises(WireError, match="would take"):
        decode_tensors(bomb, max_bytes=MOST)
    assert decode_tensors(bomb, max_bytes=8 * count)["x"].nbytes == 8 * count


def test_a_scale_of_another_dtype_does_not_widen_a_tensor() -> None:
    entries = {
        "__metadata__": {"edgebed": '{"x": "F16"}'},
        "x": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]},
        "#scale:x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        "#low:x": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]},
    }
    with pytest.raises(WireError, match="another dtype"):
        decode_tensors(body(entries, bytes(24)))


# ---- records and checkpoints ----

encode_record = msgspec.json.Encoder().encode
RECORDS = [
    encode_record(types.DeviceOut(5, 0, "dev-1", "late", "not done")),
    encode_record(types.UpdateReceived(9, 8, 0, "dev-1", "t", 100, REPORT)),
    encode_record(types.DevicePhases(9, "dev-1", "i", PHASES)),
    encode_record(types.Evaluated(9, 0, 0.5, float("nan"), 0.1)),
]


@fuzz
@given(hostile(RECORDS, as_json))
def test_a_line_of_records_is_a_record_or_none(data: bytes) -> None:
    reader.decode(data)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


@fuzz
@given(lines=st.lists(st.one_of(st.sampled_from(RECORDS), hostile(RECORDS, as_json)), max_size=4))
def test_a_damaged_records_file_is_named_with_its_line(folder: Path, lines: list[bytes]) -> None:
    path = folder / "records.jsonl"
    path.write_bytes(b"\n".join(lines))
    error = failure(lambda: reader.read(path))
    assert error is None or (isinstance(error, UsageError) and "records.jsonl:" in str(error) and error.hint)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> bytes:
    run = RunFolder(folder)
    run.save({"w": torch.randn(4, 3), "n": torch.tensor(3)}, Progress(round=2), {"m": torch.zeros(2)})
    return run.checkpoint.read_bytes()


@fuzz
@given(data=st.data())
def test_a_damaged_checkpoint_is_named(folder: Path, checkpoint: bytes, data: st.DataObject) -> None:
    RunFolder(folder).checkpoint.write_bytes(
        data.draw(st.one_of(damaged([checkpoint]), st.binary(max_size=100), bodies()))
    )
    error = failure(RunFolder(folder).restore)
    assert error is None or (isinstance(error, UsageError) and "checkpoint" in str(error) and error.hint)


@fuzz
@given(progress=st.one_of(VALUES.map(as_json), damaged([b'{"round": 3, "lr": 0.1, "method": {}}'])))
def test_a_checkpoint_with_nonsense_in_it_is_named(folder: Path, progress: bytes) -> None:
    text = progress.decode("utf-8", "replace")
    save_file({"weights/w": torch.zeros(1)}, RunFolder(folder).checkpoint, {"edgebed-progress": text})
    error = failure(RunFolder(folder).restore)
    assert error is None or "checkpoint" in str(error)
