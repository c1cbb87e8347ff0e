"""Frames: whole or refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import WireError
from edgebed.wire.frames import Chunk, Mark, chunk_count, pack_chunk, pack_mark, unpack


@given(st.binary(max_size=300), st.binary(max_size=20), st.integers(1, 64))
def test_chunks_join_to_the_body(body: bytes, header: bytes, size: int) -> None:
    count = chunk_count(len(body), size)
    chunks = [unpack(pack_chunk("t-1", "t-0", i, header, memoryview(body), size)) for i in range(count)]
    assert all(isinstance(c, Chunk) and (c.count, c.total, c.after) == (count, len(body), "t-0") for c in chunks)
    assert b"".join(bytes(c.payload) for c in chunks if isinstance(c, Chunk)) == body
    assert [bytes(c.header) for c in chunks if isinstance(c, Chunk)] == [header] + [b""] * (count - 1)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


@given(st.data())
def test_a_chunk_with_a_changed_byte_is_refused_or_means_the_same(data: st.DataObject) -> None:
    whole = pack_chunk("t-1", "t-0", 1, b"", memoryview(b"0123456789abcdef"), 8)
    frame = bytearray(whole)
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WireError):
        assert unpack(bytes(frame)) == unpack(whole)  # msgpack writes one number in several ways


def test_a_changed_payload_is_refused() -> None:
    frame = bytearray(pack_chunk("t-1", "", 0, b"head", memoryview(b"0123456789abcdef"), 16))
    frame[-1] ^= 1
    with pytest.raises(WireError, match="checksum"):
        unpack(bytes(frame))


def test_marks_survive() -> None:
    assert unpack(pack_mark(Mark("t", "s", 7, 3, 2))) == Mark("t", "s", 7, 3, 2)
