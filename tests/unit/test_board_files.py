"""What boards and their service keep and write: certificates, the files of a board, settings, units."""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from edge_agent.board import join as joining
from edge_agent.board.cipher import cipher_environment, has_aes
from edge_agent.board.client import ClockError, check_clock
from edge_agent.board.keystore import JoinedService, Keystore
from edgebed.errors import FileError, UsageError
from edgebed.service_unit import ServiceUnit, quoted
from orchestrator.boards.app import FREE_MISSES, MOST_ADDRESSES, Misses
from orchestrator.boards.authority import Authority
from orchestrator.boards.tls_broker import settings
from orchestrator.broker.acl import board_lines
from orchestrator.cli.boards import unit
from tests.unit._boards import DAY, NOW, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- the CA ----


def test_the_ca_stays_and_its_key_is_its_owners(tmp_path: Path) -> None:
    first = Authority(tmp_path)
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    assert Authority(tmp_path).fingerprint() == first.fingerprint()
    (tmp_path / "ca.key").unlink()
    with pytest.raises(FileError):  # not a new one: every board would have to join again
        Authority(tmp_path)


def test_the_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    Authority(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    Authority(other)
    (other / "ca.key").replace(tmp_path / "ca.key")
    with pytest.raises(FileError, match="is not the key of"):
        Authority(tmp_path)


def test_a_board_cannot_play_the_server_and_the_server_no_board(tmp_path: Path) -> None:
    authority, now = Authority(tmp_path), dt.datetime.now(dt.UTC)
    _, pem = authority.server_pair(["10.0.0.1", "fd00::1", "lab.example"], now)
    server = x509.load_pem_x509_certificate(pem)
    board = authority.board_certificate(ec.generate_private_key(ec.SECP256R1()).public_key(), "b1", now)
    uses = [each.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value for each in (server, board)]
    assert [list(each) for each in uses] == [[ExtendedKeyUsageOID.SERVER_AUTH], [ExtendedKeyUsageOID.CLIENT_AUTH]]
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]
    assert names.get_values_for_type(x509.DNSName) == ["lab.example"]
    assert board.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_the_list_of_revoked_certificates_lasts_as_long_as_the_ca(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    text = authority.revoked_list([7, 9], 3, dt.datetime.now(dt.UTC))
    revoked = x509.load_pem_x509_crl(text)
    assert sorted(each.serial_number for each in revoked) == [7, 9]
    assert revoked.next_update_utc == authority.certificate.not_valid_after_utc


# ---- the board's side ----


def test_the_files_of_a_board_are_its_owners(world: World) -> None:
    board = world.board("a")
    assert not board.joined
    with pytest.raises(UsageError, match="has not joined"):
        board.service()
    enrolled = world.join(world.invite("pi"), board)
    joined = JoinedService(enrolled.board, "pi", "10.0.0.1", 7443, 8883)
    board.keep(joined, world.authority.pem.decode(), enrolled.certificate)
    assert Keystore(board.folder).service() == joined
    assert stat.S_IMODE(board.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in board.folder.iterdir()} == {0o600}
    board.remove()
    board.remove()
    assert not board.folder.exists()


def test_the_certificate_of_another_key_is_not_kept(world: World) -> None:
    other = world.join(world.invite("pi"), world.board("a")).certificate
    with pytest.raises(UsageError, match="another key"):
        world.board("b").keep_certificate(other)


def test_renewal_is_wanted_when_a_third_of_the_life_is_left_or_it_has_not_begun(world: World) -> None:
    board = world.board("a")
    board.keep_certificate(world.join(world.invite("pi"), board).certificate)
    at = [dt.datetime.fromtimestamp(NOW + days * DAY, dt.UTC) for days in (-1, 0, 59, 61, 100)]
    assert [board.wants_renewal(each) for each in at] == [True, False, False, True, True]


@pytest.mark.parametrize(("off_s", "words"), [(-86400 * 300, "300 days behind"), (7200, "2 hours ahead of")])
def test_a_wrong_clock_is_named_with_its_error(off_s: float, words: str) -> None:
    date = "Sun, 22 Nov 2026 08:00:00 GMT"
    there = dt.datetime(2026, 11, 22, 8, tzinfo=dt.UTC)
    with pytest.raises(ClockError, match=words) as error:
        check_clock(date, there + dt.timedelta(seconds=off_s))
    assert "timedatectl" in error.value.hint
    check_clock(date, there + dt.timedelta(seconds=off_s / 10_000))
    for nonsense in ("nonsense", f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", f"Mon, 01 Jan 2026 00:00:00 +{'9' * 20}"):
        check_clock(nonsense, there)


@pytest.mark.parametrize(
    ("text", "found"),
    [("lab:7443", ("lab", 7443)), ("[fd00::1]:1", ("fd00::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert joining.parse_address(text) == found
    for wrong in (text.rpartition(":")[0], f"{text}x", f"{text}99999", ":7443"):
        with pytest.raises(UsageError, match="is no address"):
            joining.parse_address(wrong)


PI4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n"
PI5 = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics\n"


def test_a_processor_without_aes_instructions_uses_chacha20(tmp_path: Path) -> None:
    assert [has_aes(text) for text in (PI4, PI5, "flags\t\t: fpu sse2 aes avx\n", "")] == [False, True, True, True]
    (tmp_path / "cpuinfo").write_text(PI4)
    made = cipher_environment(tmp_path, tmp_path / "cpuinfo")
    assert "CHACHA20" in Path(made["OPENSSL_CONF"]).read_text()
    (tmp_path / "cpuinfo").write_text(PI5)
    assert cipher_environment(tmp_path, tmp_path / "cpuinfo") == {}


# ---- limits ----


def test_wrong_tokens_are_counted_by_address_in_bounded_memory() -> None:
    misses = Misses()
    assert [misses.add("a", n / 10) for n in range(FREE_MISSES + 2)][-1] == FREE_MISSES + 2
    assert misses.add("b", 1.0) == 1
    assert misses.add("a", 100.0) == 1
    for number in range(MOST_ADDRESSES):
        misses.add(f"n{number}", 101.0)
    assert misses.add("b", 102.0) == 1


# ---- what is written for other programs ----


def test_the_brokers_settings_ask_for_certificates_and_bound_packets() -> None:
    lines = settings(Path("/f"), "0.0.0.0", 8883)
    local, boards = lines.index("listener 0 /f/run/socket"), lines.index("listener 8883 0.0.0.0")
    assert local < boards < lines.index("require_certificate true") < lines.index("use_identity_as_username true")
    assert "crlfile /f/revoked.pem" in lines[boards:]
    assert "allow_anonymous false" in lines
    assert any(line.startswith("max_packet_size ") and int(line.split()[1]) > 5 << 20 for line in lines)


def test_a_board_has_rights_to_topics_that_end_in_its_id_in_its_own_fleet_only() -> None:
    waiting, working = ["read edgebed/boards/to/b1", "write edgebed/boards/state/b1"], board_lines({"b2": "f1"})
    assert board_lines({"b1": ""})[2:] == ["user b1", *(f"topic {rule}" for rule in waiting), ""]
    assert {line.split("/")[1] for line in working if line.startswith("topic") and "edgebed" in line} == {
        "boards",
        "f1",
    }
    rules = board_lines({"b1": "", "b2": "f1"})
    mine = rules[rules.index("user b1") + 1 : rules.index("user b2")]
    assert all(line.endswith("/b1") for line in mine)
    assert all(line.endswith("/b2") for line in rules[rules.index("user b2") + 1 :] if line)
    assert [line for line in rules if "pattern" in line or "+" in line or "#" in line] == ["topic readwrite #"]


def test_a_unit_starts_at_boot_and_quotes_its_command() -> None:
    made = ServiceUnit(
        "edgebed-agent",
        "About",
        ("/opt/my venv/bin/edgebed-agent", "run"),
        {"EDGEBED_BOARD": "/a%b$c"},
        Path("/var/lib/a b"),
        ("CapabilityBoundingSet=CAP_NET_ADMIN",),
    )
    text = made.text(system=True).splitlines()
    assert 'ExecStart="/opt/my venv/bin/edgebed-agent" "run"' in text
    assert 'Environment="EDGEBED_BOARD=/a%%b$$c"' in text
    assert {"Restart=always", "KillMode=mixed", "WantedBy=multi-user.target", "After=network-online.target"} <= set(
        text
    )
    assert {"ProtectSystem=strict", "PrivateTmp=true", 'ReadWritePaths="-/var/lib/a b"', "NoNewPrivileges=true"} <= set(
        text
    )
    assert "SystemCallFilter=@system-service" in text
    assert "InaccessiblePaths=-/etc/shadow -/etc/gshadow -/etc/ssh" in text
    homes = [msgspec.structs.replace(made, folder=Path(each)).text(system=True) for each in ("/root/b", "/var/lib/b")]
    used = any(Path(each).resolve().is_relative_to("/root") for each in (sys.prefix, sys.base_prefix, __file__))
    assert ["ProtectHome=read-only" in each for each in homes] == [True, used]
    assert ["ProtectHome=true" in each for each in homes] == [False, not used]
    assert "CapabilityBoundingSet=CAP_NET_ADMIN" in text
    own = joining.unit(Path("/var/lib/b")).text(system=True)
    assert "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_NET_ADMIN" in own  # cgroups' root folder is 0555
    of_user = made.text(system=False)
    assert "WantedBy=default.target" in of_user
    assert "NoNewPrivileges=true" in of_user
    assert "ProtectSystem" not in of_user
    assert quoted('a"b\\') == '"a\\"b\\\\"'


def test_no_hint_or_page_has_somebody_install_edgebed_from_an_index() -> None:
    """The name could be somebody else's there, and his program would run as root on boards."""
    root = Path(__file__).parents[2]
    texts = [path for folder in ("edgebed", "orchestrator", "edge_agent") for path in (root / folder).rglob("*.py")]
    for path in [*texts, *(root / "docs").rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]:
        found = re.search(r"pip install[^\n`]*[ '\"]edgebed([\[=<>~'\"` ]|$)", path.read_text(), re.M)
        assert found is None, f"{path}: {found}"


def test_a_unit_is_written_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("edgebed.service_unit.SYSTEMD", tmp_path / "none")
    for made in (joining.unit(tmp_path / "board"), unit(["--port", "7443"])):
        said = made.install()
        assert "systemd does not run this machine" in said
        assert made.path.parent == tmp_path / "systemd" / "user"
        assert made.path.read_text() == made.text(system=False)
        assert made.remove()
        assert not made.remove()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "also when you have logged out"), (1, "run `sudo loginctl enable-linger")]
)
def test_a_unit_of_a_user_says_whether_it_outlives_his_login(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("edgebed.service_unit.SYSTEMD", tmp_path)
    for name, ends in (("systemctl", 0), ("loginctl", code)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho Access denied >&2\nexit {ends}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said = joining.unit(tmp_path / "board").install()
    assert "enabled and started" in said
    assert words in said
