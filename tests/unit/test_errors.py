"""What records and messages say of an error; messages and records of before still decode."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from edgebed.errors import MOST_TRACE, UsageError, counted, in_words, said, trace_of
from edgebed.wire.messages import Failure, decode_header, encode
from orchestrator.cli import main
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


def test_a_count_has_its_noun_in_the_right_number() -> None:
    told = [counted(count, "CPU") for count in (0, 0.5, 1, 1.0, 7.3, 1_000_000)]
    assert told == ["0 CPUs", "0.5 CPUs", "1 CPU", "1 CPU", "7.3 CPUs", "1000000 CPUs"]


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


def test_what_a_file_of_others_holds_does_not_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OSC 52 writes the clipboard; the name of a column, say, is repeated by a message."""
    (tmp_path / "a.csv").write_text("a\x1b]52;c;ZXZpbA==\x1b\\,b\n1,2\n")
    text = "name: x\nfleet: dtfl-5\nmethods: [{name: fedavg}]\nmodel: {name: fcnn}\n"
    (tmp_path / "x.yaml").write_text(f"{text}data: {{name: table, path: a.csv, target: c}}\n")
    monkeypatch.setattr(sys, "argv", ["edgebed", "data", str(tmp_path / "x.yaml")])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr()
    assert "its columns: a" in told.out + told.err
    assert "\x1b]52" not in told.out + told.err


def test_lines_of_an_error_stay_lines() -> None:
    assert said(UsageError("a\n1. b\x1b[2K")) == "a\n1. b [2K"
