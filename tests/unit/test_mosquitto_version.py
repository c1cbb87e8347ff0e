"""What `edgebed boards serve` says of an old Mosquitto, and the dashboard of a short token."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.broker.mosquitto import flaws
from orchestrator.cli import build


@pytest.mark.parametrize(
    ("version", "package", "said"),
    [
        ("2.0.11", "2.0.11-1.2+deb12u1", "Mosquitto 2.0.11 has published flaws"),
        ("2.0.11", "2.0.11-1.2+deb12u2", ""),
        ("2.0.11", "", "has published flaws"),
        ("2.0.22", "", ""),
        ("2.1.2", "", ""),
        ("what", "", "cannot be read"),
    ],
)
def test_an_old_mosquitto_is_named(
    version: str, package: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "mosquitto": f"echo 'mosquitto version {version}'; exit 3",
        "dpkg-query": f"printf '{package}'; [ -n '{package}' ]",
        "dpkg": '[ "$2" = "$4" ]',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert said in flaws(str(tmp_path / "mosquitto"))
    assert bool(flaws(str(tmp_path / "mosquitto"))) == bool(said)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than 20 characters"):
        CliRunner().invoke(build(), ["dashboard", "--token", "abc"], catch_exceptions=False)
