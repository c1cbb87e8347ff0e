"""What an agent reads of a board, from samples of Pi 4, Pi 5, Jetsons, a laptop and a virtual machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors import machine, raspberry
from edge_agent.sensors.board import SHARE, Seldom
from edge_agent.sensors.source import RunCommand, run_command
from edge_agent.sensors.watch import BoardWatch, sendable
from edgebed.wire.messages import Status, decode_control, encode
from edgebed.wire.reading import BoardReading
from tests.board_samples import Sample


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Sample]:
    return lambda name: Sample(name, tmp_path)


def test_a_pi_4_that_is_throttled(sample: Callable[[str], Sample]) -> None:
    board = sample("pi-4").board()
    reading = board.read()
    assert reading == BoardReading(
        7_000_000_000, (1000, 1000, 1000, 1000), cap=1.0, celsius=80.337, throttled=0x50005, watts=None
    )
    assert board.facts() == {
        "board": "Raspberry Pi 4 Model B Rev 1.4",
        "cores": "4",
        "memory_mib": "3791",
        "throttled": "0x50005",
        "sensors": "frequency cap temperature throttling",
        "governor": "ondemand",
        "max_mhz": "1500",
        "clock": "not synchronised",
    }


def test_a_pi_5_has_power_without_its_5_v_branch(sample: Callable[[str], Sample]) -> None:
    board = sample("pi-5").board()
    reading, facts = board.read(), board.facts()
    # Sum of A × V over the rails that have both; EXT5V and BATT have a voltage only.
    expected = (
        0.002 * 3.7 + 0.125 * 3.3 + 0.24 * 1.8 + 0.19 * 1.1 + 0.31 * 0.8 + 1.05 * 0.82 + 0.003 * 0.8 + 0.0004 * 5.1
    )
    assert reading.watts == pytest.approx(expected)
    assert (reading.throttled, reading.celsius, reading.hot) == (0, 58.4, None)
    assert facts["power_rails"] == "12 rails of the PMIC, without the 5 V branch"
    assert facts["clock"] == "synchronised with 162.159.200.123"
    assert float(facts["clock_error_s"]) == pytest.approx(0.000017125 + 0.000915 + 0.01412 / 2, abs=1e-6)


def test_an_orin_nano_has_one_rail_that_feeds_all(sample: Callable[[str], Sample]) -> None:
    board = sample("jetson-orin-nano").board()
    reading, facts = board.read(), board.facts()
    assert reading.watts == pytest.approx(5.040 * 1.352)
    assert (reading.cap, reading.hot, reading.celsius, reading.throttled) == (1.0, False, 49.062, None)
    assert (facts["power_rails"], facts["power_mode"], facts["slows_at_celsius"]) == ("VDD_IN", "15W", "99")


def test_an_agx_orin_that_is_hot_and_capped(sample: Callable[[str], Sample]) -> None:
    """No rail feeds all others: the sum. Channels that are not connected do not count."""
    board = sample("jetson-agx-orin").board()
    reading = board.read()
    assert reading.watts == pytest.approx(20 * 0.3 + 20 * 0.1 + 5 * 0.9 + 20 * 0.05)
    assert (reading.cap, reading.hot) == (round(1728 / 2201.6, 4), True)
    assert board.facts()["power_rails"] == "sum of VDDQ_VDD2_1V8AO + VDD_CPU_CV + VDD_GPU_SOC + VIN_SYS_5V0"


def test_jetpack_4_has_its_rails_under_iio(sample: Callable[[str], Sample]) -> None:
    board = sample("jetson-nano").board()
    assert board.read().watts == pytest.approx(2.342)
    assert board.facts()["power_mode"] == "5W"


def test_a_laptop_has_trip_points_that_are_switched_off(sample: Callable[[str], Sample]) -> None:
    board = sample("laptop").board()
    reading = board.read()
    assert reading.mhz == (3200, 2900, 800, 4700)
    assert (reading.celsius, reading.hot, reading.watts, reading.throttled) == (61.0, None, None, None)
    assert board.facts()["board"] == "LENOVO 20XW0055GE"


def test_what_is_not_there_is_not_known_and_never_0(sample: Callable[[str], Sample]) -> None:
    board = sample("virtual-machine").board()
    assert board.read() == BoardReading(7_000_000_000)
    assert board.facts() == {"cores": "2", "memory_mib": "24105", "sensors": "none"}


def test_a_rail_without_a_value_makes_the_power_unknown(sample: Callable[[str], Sample]) -> None:
    agx = sample("jetson-agx-orin")
    (agx.root / "sys/class/hwmon/hwmon1/curr2_input").write_text("")
    assert agx.board().read().watts is None


def test_a_command_costs_at_most_its_share_of_a_core() -> None:
    """One that used 20 ms of CPU waits 5 s; a slow one waits longer from then on."""
    now, spent, costs = 0.0, 0.0, [0.020, 0.020, 0.040, 0.020, 0.020]
    asked: list[float] = []

    def ask() -> int:
        nonlocal spent
        spent += costs[len(asked)]
        asked.append(now)
        return 1

    source = Seldom(ask, lambda: now, lambda: spent)
    for second in range(31):
        now = float(second)
        source.read()
    assert asked == [0.0, 5.0, 10.0, 20.0, 30.0]
    assert SHARE * 5 == 0.020


def test_a_missing_command_is_asked_once(sample: Callable[[str], Sample]) -> None:
    orin = sample("jetson-orin-nano")
    board = orin.board()
    for _ in range(5):
        board.read()
    assert orin.asked.count("vcgencmd get_throttled") == 1
    assert orin.asked.count("nvpmodel -q") == 5  # the clock stands, and no command costs anything


def test_a_change_of_governor_or_power_mode_is_in_every_reading_until_it_is_undone(
    sample: Callable[[str], Sample],
) -> None:
    orin = sample("jetson-orin-nano")
    board = orin.board()

    def settings() -> tuple[str | None, str | None]:
        reading = board.read()
        return reading.governor, reading.power_mode

    assert [settings(), settings()] == [(None, None)] * 2
    governors = [*orin.root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")]
    before, mode = governors[0].read_text(), orin.commands["nvpmodel -q"]
    governors[0].write_text("powersave")
    orin.commands["nvpmodel -q"] = "NV Power Mode: 7W\n1\n"
    assert [settings(), settings()] == [("powersave schedutil", "7W")] * 2
    orin.commands["nvpmodel -q"] = "ERROR"
    assert settings() == ("powersave schedutil", "7W")  # a question that fails tells no change
    governors[0].write_text(before)
    orin.commands["nvpmodel -q"] = mode
    assert settings() == (None, None)
    orin.commands["nvpmodel -q"] = f"NV Power Mode: {'long ' * 100}"
    assert sendable(board.read())


def test_a_command_that_is_missing_or_fails_tells_nothing() -> None:
    assert run_command(("edgebed-no-such-command",)) is None
    assert run_command(("false",)) is None
    assert run_command(("echo", "NV Power Mode: MAXN")) == "NV Power Mode: MAXN\n"


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    run: RunCommand = lambda command: text  # noqa: E731
    bits = raspberry.throttled(run)
    assert bits is None or isinstance(bits, int)
    assert all(watts >= 0 for watts in raspberry.rails(text).values())
    assert machine.power_mode(run) != ""
    assert "" not in machine.clock(run).values()
    assert (machine.count_of(text) or 1) > 0


@pytest.mark.parametrize(("text", "count"), [("0-3", 4), ("0,2-3", 3), ("0", 1), ("", None), ("3-0", None)])
def test_lists_of_cores_are_counted(text: str, count: int | None) -> None:
    assert machine.count_of(text) == count


def test_torch_says_what_it_was_built_for() -> None:
    assert set(machine.torch_facts()) == {"torch_build", "torch_simd", "torch_threads", "usable_cores"}


def test_readings_wait_for_the_next_heartbeat(sample: Callable[[str], Sample]) -> None:
    watch = BoardWatch(sample("pi-4").board(), every_s=0.001)
    taken: list[BoardReading] = []
    while len(taken) < 3:
        taken += watch.take()
    watch.close()
    assert {reading.celsius for reading in taken} == {80.337}
    status = Status("a", "i", 0, "", "waiting", 0, 0.0, 0, board=tuple(taken))
    assert decode_control(encode(status)) == status


def test_nonsense_of_a_sensor_costs_no_heartbeat() -> None:
    assert sendable(BoardReading(1, watts=3.0))
    assert not sendable(BoardReading(1, watts=float("nan")))
    assert not sendable(BoardReading(1, throttled=-1))
