"""The two frames of the data connection: a chunk of a transfer, and a mark between chunks. Pure.

A transfer is a header (`edgebed.wire.messages.Header`, msgpack) and a body of opaque bytes. The body is cut into
`count` chunks of equal size (the last may be shorter; an empty body is one empty chunk); chunk 0 also carries the
header. A *mark* carries no data: it follows the chunks sent before it, so its arrival proves that every one of them
that is still missing was lost (the connection keeps order), and never merely slow.
"""

from __future__ import annotations

import zlib
from typing import Annotated

import msgspec

from edgebed.errors import WireError, printable

Text = Annotated[str, msgspec.Meta(max_length=100)]
"""The name of a transfer."""

EMPTY = memoryview(b"")

WIRE_SHARE = 1448 / 1514
"""Bytes of payload per byte on the wire in a full Ethernet frame with TCP/IPv4 and timestamps. Limits are rates on the
wire."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Chunk `index` of `count`. `after` is the sender's transfer before this one while that is not done, else "";
    `total` is the body's length in bytes; `crc` covers all other fields."""

    transfer: Text
    after: Text
    index: int
    count: int
    total: int
    crc: int
    header: memoryview
    payload: memoryview


class Mark(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """Mark `number` of a transfer of `count` chunks, of which the receiver has credited `credited`; `after` as in
    Chunk."""

    transfer: Text
    after: Text
    number: int
    count: int
    credited: int


Frame = Chunk | Mark

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def chunk_count(total: int, chunk_bytes: int) -> int:
    """Chunks of a body of `total` bytes."""
    return max(1, -(-total // chunk_bytes))


def pack_chunk(transfer: str, after: str, index: int, header: bytes, body: memoryview, chunk_bytes: int) -> bytes:
    """The frame of chunk `index` of the transfer of `header` and `body` (one dimension, bytes)."""
    head = memoryview(header) if index == 0 else EMPTY
    payload = body[index * chunk_bytes : (index + 1) * chunk_bytes]
    count = chunk_count(len(body), chunk_bytes)
    crc = _crc(transfer, after, index, count, len(body), head, payload)
    return _encoder.encode(Chunk(transfer, after, index, count, len(body), crc, head, payload))


def pack_mark(mark: Mark) -> bytes:
    return _encoder.encode(mark)


def unpack(data: bytes | memoryview) -> Frame:
    """The frame in `data`; header and payload are views of it. Raises WireError for anything damaged."""
    try:
        frame = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a frame of this protocol: {printable(str(error))}") from None
    if isinstance(frame, Chunk):
        _check(frame)
    return frame


def _check(chunk: Chunk) -> None:
    if not 0 <= chunk.index < chunk.count or chunk.total < len(chunk.payload):
        raise WireError(f"chunk {chunk.index} of {chunk.count} with {len(chunk.payload)} of {chunk.total} bytes")
    if chunk.crc != _crc(*(getattr(chunk, name) for name in _SUMMED)):
        raise WireError(f"chunk {chunk.index} of transfer {chunk.transfer!r} is damaged: its checksum differs")


_SUMMED = ("transfer", "after", "index", "count", "total", "header", "payload")


def _crc(transfer: str, after: str, index: int, count: int, total: int, header: memoryview, payload: memoryview) -> int:
    fields = f"{transfer}\n{after}\n{index}\n{count}\n{total}\n{len(header)}\n".encode()
    return zlib.crc32(payload, zlib.crc32(header, zlib.crc32(fields)))
