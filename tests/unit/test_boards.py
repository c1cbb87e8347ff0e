"""Boards: tokens, the registry, what the service answers, certificates, the files of a board; without a network."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from edge_agent.board import join as joining
from edge_agent.board.cipher import cipher_environment, has_aes
from edge_agent.board.client import ClockError, check_clock
from edge_agent.board.keystore import Keystore, Membership
from edgebed.errors import FileError, UsageError, WireError
from edgebed.service_unit import ServiceUnit, quoted
from edgebed.wire.boards import Enrolled, Join, Renew, Token, decode_assignment, parse_token, plain_facts
from orchestrator.boards.app import FREE_MISSES, MOST_ADDRESSES, Misses
from orchestrator.boards.authority import Authority, requested_key
from orchestrator.boards.enrolment import LATE_S, Enrolment, Refused
from orchestrator.boards.place import Place
from orchestrator.boards.registry import Board, Store
from orchestrator.boards.tls_broker import access_rules, settings
from orchestrator.cli.boards import board_rows, duration_s, unit

NOW = 1_800_000_000.0
DAY = 86400.0


class World:
    """A service without a network, and boards in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = Place(folder)
        self.store, self.authority = Store(place), Authority(folder)
        self.enrolment = Enrolment(self.store, self.authority, 8883)

    def invite(self, name: str, *, replace: bool = False, lasts_s: float = 3600.0, now: float = NOW) -> str:
        with self.store.change() as registry:
            return registry.invite(name, "", lasts_s, replace, now)

    def board(self, folder: str) -> Keystore:
        return Keystore(self.folder / folder)

    def join(self, secret: str, board: Keystore, now: float = NOW) -> Enrolled:
        return self.enrolment.join(Join(secret, board.request()), now)

    def refused(self, secret: str, board: Keystore, now: float = NOW) -> tuple[int, str]:
        with pytest.raises(Refused) as refused:
            self.join(secret, board, now)
        return refused.value.status, refused.value.error


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- tokens ----


def test_a_token_reads_back_and_a_damaged_one_is_refused_without_repeating_it() -> None:
    token = Token(bytes(range(32)), "s" * 22, "pi.4")
    assert parse_token(f"  {token}\n") == token
    for text in ("", "eb1", str(token)[:20], str(token).replace("eb1.", "eb2."), f"{token}/x", str(token)[:-4]):
        with pytest.raises(UsageError) as error:
            parse_token(text)
        assert "s" * 22 not in str(error.value)


@given(st.text())
def test_any_text_is_a_token_or_refused(text: str) -> None:
    for each in (text, f"eb1.{text}", f"eb1.{'A' * 43}.{text}"):
        try:
            parse_token(each)
        except UsageError:
            continue


@given(st.binary(max_size=200))
def test_any_bytes_are_an_assignment_or_refused(data: bytes) -> None:
    try:
        decode_assignment(data)
    except WireError:
        return


def test_an_assignment_names_a_fleet_and_a_shard() -> None:
    assert decode_assignment(b"") is None
    right = decode_assignment(b'{"fleet":"f1","shard":"%s"}' % (b"a" * 64))
    assert right is not None
    assert right.fleet == "f1"
    for wrong in (b'{"fleet":"../x","shard":"%s"}' % (b"a" * 64), b'{"fleet":"f1","shard":"../../etc/passwd"}'):
        with pytest.raises(WireError):
            decode_assignment(wrong)


def test_facts_are_short_printable_and_few() -> None:
    kept = plain_facts({f"k{n}": "\x1b[31m" + "x" * 999 for n in range(99)})
    assert len(kept) == 32
    assert all(len(value) <= 200 and "\x1b" not in value for value in kept.values())


# ---- joining ----


def test_a_board_joins_once_and_gets_a_random_id(world: World) -> None:
    board, secret = world.board("a"), world.invite("pi")
    enrolled = world.join(secret, board)
    certificate = x509.load_pem_x509_certificate(enrolled.certificate.encode())
    assert certificate.subject.rfc4514_string() == f"CN={enrolled.board}"
    assert certificate.not_valid_after_utc.timestamp() == NOW + 90 * DAY
    assert certificate.not_valid_before_utc.timestamp() < NOW - 3600
    certificate.verify_directly_issued_by(world.authority.certificate)
    assert secret not in world.folder.joinpath("registry.json").read_text()
    assert world.refused(secret, world.board("b")) == (403, "this token was used already, by another key")


def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_key(world: World) -> None:
    board, secret = world.board("a"), world.invite("pi")
    assert world.join(secret, board).board == world.join(secret, board).board
    assert len(world.store.read().boards) == 1


@pytest.mark.parametrize(
    ("later_s", "withdraw", "why"),
    [(3601.0, False, "this token has run out"), (0.0, True, "this token was withdrawn")],
)
def test_a_token_that_no_longer_works_says_why(world: World, later_s: float, withdraw: bool, why: str) -> None:
    secret = world.invite("pi")
    if withdraw:
        with world.store.change() as registry:
            assert registry.withdraw("pi")
    status, error = world.refused(secret, world.board("a"), NOW + later_s)
    assert status == 403
    assert error.startswith(why)


def test_a_newer_token_makes_the_older_one_useless(world: World) -> None:
    first, second = world.invite("pi"), world.invite("pi")
    assert world.refused(first, world.board("a"))[1].startswith("this token was withdrawn")
    world.join(second, world.board("a"))


def test_a_stranger_learns_nothing(world: World) -> None:
    world.invite("pi")
    assert world.refused("x" * 22, world.board("a")) == (403, "this token is not known here")
    with pytest.raises(Refused) as refused:
        world.enrolment.renew(Renew(world.board("a").request()), NOW)
    assert "not known here, or it is revoked" in refused.value.error


def test_a_name_is_taken_until_it_is_replaced(world: World) -> None:
    world.join(world.invite("pi"), world.board("a"))
    with pytest.raises(UsageError, match="there is a board pi already"):
        world.invite("pi")
    secret = world.invite("pi", replace=True)
    assert world.store.read().named("pi") is not None  # an invitation alone takes nothing away
    new = world.join(secret, world.board("b"))
    registry = world.store.read()
    assert [(board.id == new.board, board.revoked_why) for board in registry.boards] == [
        (False, "replaced"),
        (True, ""),
    ]
    assert registry.revoked_serials() == [int(serial, 16) for serial in registry.boards[0].serials]


def test_a_key_joins_once(world: World) -> None:
    world.join(world.invite("a"), world.board("a"))
    assert world.refused(world.invite("b"), world.board("a")) == (409, "this key has joined already")


def test_a_revoked_board_does_not_come_back_with_its_token(world: World) -> None:
    board, secret = world.board("a"), world.invite("pi")
    world.join(secret, board)
    with world.store.change() as registry:
        registry.revoke(registry.find("pi"), "by hand", NOW)
    assert world.refused(secret, board) == (403, "the board that joined with this token is revoked")


# ---- requests for certificates ----


def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *names: x509.NameAttribute) -> str:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def test_a_csr_with_a_name_is_refused(world: World) -> None:
    other = world.join(world.invite("a"), world.board("a")).board
    name = x509.NameAttribute(x509.NameOID.COMMON_NAME, other)
    with pytest.raises(Refused, match="the service gives the name"):
        world.enrolment.join(Join(world.invite("b"), csr(ec.generate_private_key(ec.SECP256R1()), name)), NOW)


def test_only_keys_of_p256_are_signed() -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        with pytest.raises(UsageError, match="EC P-256"):
            requested_key(csr(key))


def test_a_csr_of_a_key_that_one_does_not_have_is_refused() -> None:
    text = csr(ec.generate_private_key(ec.SECP256R1()))
    request = x509.load_pem_x509_csr(text.encode())
    damaged = bytearray(request.public_bytes(serialization.Encoding.DER))
    damaged[-1] ^= 1
    with pytest.raises(UsageError):
        requested_key(x509.load_der_x509_csr(bytes(damaged)).public_bytes(serialization.Encoding.PEM).decode())


@given(st.text(max_size=300))
def test_any_text_is_a_csr_or_refused(text: str) -> None:
    with pytest.raises(UsageError):
        requested_key(f"-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")


# ---- renewing, leaving ----


def test_a_certificate_is_renewed_for_the_same_key_also_after_its_end(world: World) -> None:
    board = world.board("a")
    first = world.join(world.invite("pi"), board)
    for days, right in ((60, True), (150, True), (300, True), (300 + 90 + LATE_S / DAY + 1, False)):
        now, wanted = NOW + days * DAY, Renew(board.request())
        if not right:
            with pytest.raises(Refused, match="ran out too long ago"):
                world.enrolment.renew(wanted, now)
            continue
        renewed = world.enrolment.renew(wanted, now)
        assert renewed.board == first.board
        assert x509.load_pem_x509_certificate(renewed.certificate.encode()).not_valid_after_utc.timestamp() > now


def test_a_board_cannot_fill_the_registry_by_renewing(world: World) -> None:
    board = world.board("a")
    world.join(world.invite("pi"), board)
    with pytest.raises(Refused) as refused:
        world.enrolment.renew(Renew(board.request()), NOW + 1)
    assert refused.value.status == 429


def test_a_board_that_left_is_no_member(world: World) -> None:
    certificate = x509.load_pem_x509_certificate(world.join(world.invite("pi"), world.board("a")).certificate.encode())
    assert world.enrolment.member(certificate.serial_number).name == "pi"
    world.enrolment.leave(certificate.serial_number, NOW)
    for serial in (certificate.serial_number, None, 1):
        with pytest.raises(Refused):
            world.enrolment.member(serial)


# ---- the registry ----


def test_boards_are_found_by_name_and_by_the_beginning_of_their_id(world: World) -> None:
    one = world.join(world.invite("one"), world.board("a")).board
    with world.store.change() as registry:
        assert registry.find("one").id == registry.find(one[:8]).id == one
        registry.rename(registry.find("one"), "two")
        for wrong in ("one", one[:2], "zzzz"):
            with pytest.raises(UsageError, match="no board that may connect"):
                registry.find(wrong)
        with pytest.raises(UsageError, match="no name for a board"):
            registry.rename(registry.find("two"), "a/b")
    assert world.store.read().find("two").id == one


def test_a_change_that_fails_changes_nothing(world: World) -> None:
    world.invite("pi")
    before = world.folder.joinpath("registry.json").read_bytes()
    with contextlib.suppress(UsageError), world.store.change() as registry:
        registry.boards.append(Board("b", "x", "", "", 0, [], 0, 0))
        registry.invite("a b", "", 1.0, False, NOW)
    assert world.folder.joinpath("registry.json").read_bytes() == before


def test_what_is_listed(world: World) -> None:
    away = world.join(world.invite("away"), world.board("a")).board
    here = world.join(world.invite("here"), world.board("b")).board
    world.invite("soon", lasts_s=600)
    rows = board_rows(world.store.read(), {here}, NOW + 1)
    assert [(row["name"], row["id"], row["state"]) for row in rows] == [
        ("away", away, "away"),
        ("here", here, "connected"),
        ("soon", "", "invited, 10 min left"),
    ]
    assert board_rows(world.store.read(), set(), NOW + 91 * DAY)[0]["state"] == "certificate ran out"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172800)])
def test_times(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds
    for wrong in (text[:-1], f"-{text}", "0s", f"{text}x"):
        with pytest.raises(UsageError, match="is no time"):
            duration_s(wrong)


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
        board.membership()
    enrolled = world.join(world.invite("pi"), board)
    membership = Membership(enrolled.board, "pi", "10.0.0.1", 7443, 8883)
    board.keep(membership, world.authority.pem.decode(), enrolled.certificate)
    assert Keystore(board.folder).membership() == membership
    assert stat.S_IMODE(board.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in board.folder.iterdir()} == {0o600}
    board.remove()
    board.remove()
    assert not board.folder.exists()


def test_the_certificate_of_another_key_is_not_kept(world: World) -> None:
    other = world.join(world.invite("pi"), world.board("a")).certificate
    with pytest.raises(UsageError, match="another key"):
        world.board("b").keep_certificate(other)


def test_renewal_is_wanted_when_a_third_of_the_life_is_left(world: World) -> None:
    board = world.board("a")
    board.keep_certificate(world.join(world.invite("pi"), board).certificate)
    at = [dt.datetime.fromtimestamp(NOW + days * DAY, dt.UTC) for days in (0, 59, 61, 100)]
    assert [board.wants_renewal(each) for each in at] == [False, False, True, True]


@pytest.mark.parametrize(("off_s", "words"), [(-86400 * 300, "300 days behind"), (7200, "2 hours ahead of")])
def test_a_wrong_clock_is_named_with_its_error(off_s: float, words: str) -> None:
    date = "Sun, 22 Nov 2026 08:00:00 GMT"
    there = dt.datetime(2026, 11, 22, 8, tzinfo=dt.UTC)
    with pytest.raises(ClockError, match=words) as error:
        check_clock(date, there + dt.timedelta(seconds=off_s))
    assert "timedatectl" in error.value.hint
    check_clock(date, there + dt.timedelta(seconds=off_s / 10_000))
    check_clock("nonsense", there)


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
    lines = settings(Path("/f"), "0.0.0.0", 8883, 1999)
    local, boards = lines.index("listener 1999 127.0.0.1"), lines.index("listener 8883 0.0.0.0")
    assert local < boards < lines.index("require_certificate true") < lines.index("use_identity_as_username true")
    assert "crlfile /f/revoked.pem" in lines[boards:]
    assert "allow_anonymous false" in lines
    assert any(line.startswith("max_packet_size ") and int(line.split()[1]) > 5 << 20 for line in lines)


def test_a_board_has_rights_to_topics_that_end_in_its_id() -> None:
    rules = access_rules(["b1"]).splitlines()
    assert rules[rules.index("user b1") + 1] == "topic deny #"
    assert all(line.endswith("/%u") for line in rules if line.startswith("pattern"))
    assert [line for line in rules if line.endswith("#") and "deny" not in line] == ["topic readwrite #"]


def test_a_unit_starts_at_boot_and_quotes_its_command() -> None:
    made = ServiceUnit("edgebed-agent", "About", ("/opt/my venv/bin/edgebed-agent", "run"), {"EDGEBED_BOARD": "/a%b$c"})
    text = made.text(system=True).splitlines()
    assert 'ExecStart="/opt/my venv/bin/edgebed-agent" "run"' in text
    assert 'Environment="EDGEBED_BOARD=/a%%b$$c"' in text
    assert {"Restart=always", "WantedBy=multi-user.target", "After=network-online.target"} <= set(text)
    assert "WantedBy=default.target" in made.text(system=False)
    assert quoted('a"b\\') == '"a\\"b\\\\"'


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
