"""What the network path carries: measured with real links, kept for this boot, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from orchestrator.fleet.host import network_path
from orchestrator.fleet.host.network_path import Measured
from orchestrator.fleet.leftovers import find_leftovers, remove
from orchestrator.fleet.network import netns
from tests.hangs import COMMAND_S


@pytest.mark.root
def test_it_is_measured_once_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEBED_CACHE", str(tmp_path / "deep"))
    monkeypatch.setattr(network_path, "LINKS", 2)
    monkeypatch.setattr(network_path, "RATES_BIT_S", (20_000_000,))
    assert network_path.known() is None
    carried = network_path.measure()
    assert carried is not None
    most = 2 * 20_000_000 * network_path.USABLE
    assert 0.5 * most < carried.up_bit_s < 1.5 * most
    assert 0.5 * most < carried.down_bit_s < 1.5 * most
    assert network_path.known() == carried
    assert not [name for name in netns.existing() if f"-{netns.path_name(os.getpid())}-" in name]


@pytest.mark.root
def test_links_of_a_killed_measurement_are_found_and_removed() -> None:
    left = f"edgebed-{netns.path_name(2**22 + 1)}-0"  # no process has such a number
    subprocess.run(["ip", "netns", "add", left], check=True, timeout=COMMAND_S)
    try:
        (found,) = [each for each in find_leftovers() if each.name == left]
        remove(found)
        assert left not in netns.existing()
    finally:
        netns.remove(left)


def test_a_measurement_of_another_kernel_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEBED_CACHE", str(tmp_path))
    path = network_path.cache_file()
    path.write_bytes(msgspec.json.encode(Measured("boot", "another", 2.0, network_path.NOTHING)))
    assert network_path.known() is None
    path.write_text("{")
    assert network_path.known() is None
