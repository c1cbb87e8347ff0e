"""What records and messages say of an error; messages and records of before still decode."""

from __future__ import annotations

import msgspec

from edgebed.errors import MOST_TRACE, UsageError, in_words, trace_of
from edgebed.wire.messages import Failure, decode_header, encode
from orchestrator.records.types import DeviceOut


def raised(depth: int) -> Exception:
    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise KeyError(f"a bug {left}" + "x" * 100)

    try:
        fall(depth)
    except KeyError as error:
        return error
    raise AssertionError


def test_an_error_nobody_foresaw_has_its_type_and_a_bounded_traceback() -> None:
    assert in_words(KeyError("a bug")) == "KeyError: 'a bug'"
    trace = trace_of(raised(3))
    assert trace.startswith("Traceback")
    assert "in fall" in trace
    deep = msgspec.json.decode(msgspec.json.encode(trace_of(RuntimeError("y" * 20_000))), type=str)
    assert len(deep) == MOST_TRACE
    assert deep.endswith("yy\n")


def test_one_of_our_own_says_message_and_hint_and_needs_no_traceback() -> None:
    error = UsageError("no such key", hint="write another")
    assert in_words(error) == "no such key write another"
    assert trace_of(error) == ""
    assert in_words(MemoryError()).startswith("out of memory")


def test_what_was_written_without_a_trace_is_read() -> None:
    bare = {"type": "failure", "device": "d", "task": "t", "why": "w"}
    assert decode_header(msgspec.msgpack.encode(bare)) == Failure("d", "t", "w")
    assert decode_header(encode(Failure("d", "t", "w", trace="x"))) == Failure("d", "t", "w", trace="x")
    old = {"type": "device_out", "at_ns": 1, "round": 0, "device": "d", "how": "lost", "why": "w"}
    assert msgspec.convert(old, DeviceOut).trace == ""
