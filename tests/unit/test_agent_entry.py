"""`edgebed-agent` with words that it does not know."""

from __future__ import annotations

import sys

import pytest

from edge_agent.entry import main
from edgebed.errors import UsageError


def test_an_unknown_command_is_named_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edgebed-agent", "jion"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == UsageError.exit_code
    said = capsys.readouterr().err
    assert "there is no command 'jion'; did you mean 'join'?" in said
    assert "join | run | leave" in said
