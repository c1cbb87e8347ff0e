"""How an agent is told its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.__main__ import settings_from
from edgebed.errors import FileError, UsageError

REST = ["--fleet", "f1", "--device", "d1", "--shard", "x"]


def test_the_broker_comes_from_a_file_the_environment_or_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker"
    file.write_text("mqtt://d1:p%40ss@10.0.0.1:1999\n")
    monkeypatch.setenv("EDGEBED_BROKER", "mqtt://h:1")
    assert settings_from(REST).host == "h"
    assert settings_from([*REST, "--broker", "mqtt://other"]).host == "other"
    monkeypatch.setenv("EDGEBED_BROKER_FILE", str(file))
    settings = settings_from(REST)
    assert (settings.host, settings.port, settings.username, settings.password) == ("10.0.0.1", 1999, "d1", "p@ss")


@pytest.mark.parametrize("url", [" mqtts://d1:secret@h", "\tmqtts://d1:secret@h", "mqtt\ns://d1:secret@h"])
def test_a_password_never_goes_without_tls_to_a_broker_that_was_to_speak_it(url: str) -> None:
    """`urlsplit` finds `mqtts` in each."""
    with pytest.raises(UsageError, match="is no broker's address") as caught:
        settings_from([*REST, "--broker", url])
    assert "secret" not in str(caught.value)


def test_a_wrong_file_is_named_without_its_password(tmp_path: Path) -> None:
    file = tmp_path / "broker"
    with pytest.raises(FileError, match="broker"):
        settings_from([*REST, "--broker-file", str(file)])
    file.write_text("mqtt://d1:secret@")
    with pytest.raises(UsageError) as caught:
        settings_from([*REST, "--broker-file", str(file)])
    assert "secret" not in str(caught.value)
