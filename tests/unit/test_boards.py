"""Boards: tokens, the registry, and what the service answers; without a network."""

from __future__ import annotations

import contextlib
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from edgebed.errors import FleetError, UsageError, WireError
from edgebed.link.connection import Address
from edgebed.wire.boards import Join, Renew, Token, decode_order, parse_token, plain_facts
from orchestrator.boards import registry
from orchestrator.boards.authority import requested_key
from orchestrator.boards.enrolment import LATE_S, RENEW_PAUSE_S, Refused
from orchestrator.boards.registry import Board, Store
from orchestrator.boards.service_folder import Live, ServiceFolder, Where
from orchestrator.cli import build
from orchestrator.cli.boards import board_rows, duration_s
from orchestrator.fleet.ownership import this_process
from orchestrator.fleet.spec.profile import load_profile
from tests.unit._boards import DAY, NOW, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- the registry's lock ----


def test_a_registry_that_another_process_holds_is_waited_for_in_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LOCK_S", 0.05)
    first, second = Store(ServiceFolder(tmp_path)), Store(ServiceFolder(tmp_path))
    with first.change(), pytest.raises(FleetError, match=r"another process has held .*lock"), second.change():
        pass
    with second.change():
        pass


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
    for each in (text, f"eb1.{text}", f"eb1.{'A' * 43}.{text}", f"eb1.{'A' * 43}.{'s' * 22}.{text}"):
        try:
            token = parse_token(each)
        except UsageError:
            continue
        assert parse_token(str(token)) == token


@given(st.binary(max_size=200))
def test_any_bytes_are_an_order_or_refused(data: bytes) -> None:
    try:
        found = decode_order(data)
    except WireError:
        return
    assert found is None or decode_order(msgspec.json.encode(found)) == found


def test_an_order_names_a_fleet_and_a_shard() -> None:
    assert decode_order(b"") is None
    right = decode_order(b'{"fleet":"f1","shard":"%s"}' % (b"a" * 64))
    assert right is not None
    assert right.fleet == "f1"
    wrong_code = b'{"fleet":"f1","shard":"%s","code":"../../etc/passwd"}' % (b"a" * 64)
    for wrong in (
        b'{"fleet":"../x","shard":"%s"}' % (b"a" * 64),
        b'{"fleet":"f1","shard":"../../etc/passwd"}',
        wrong_code,
    ):
        with pytest.raises(WireError):
            decode_order(wrong)


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
    first, before = world.join(secret, board), world.folder.joinpath("registry.json").read_bytes()
    assert [world.join(secret, board, NOW + later) for later in (1, 2, 100)] == [first] * 3
    assert world.folder.joinpath("registry.json").read_bytes() == before


def test_a_board_of_an_earlier_version_gets_one_new_certificate_for_its_token(world: World) -> None:
    board, secret = world.board("a"), world.invite("pi")
    first = world.join(secret, board)
    with world.store.change() as registry:
        registry.boards[0].certificate = ""
    second = world.join(secret, board, NOW + 61)
    assert (second.board, second.certificate == first.certificate) == (first.board, False)
    assert world.join(secret, board, NOW + 62) == second


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


def test_what_a_killed_service_told_is_not_believed(tmp_path: Path) -> None:
    """Another user could have made a socket where the old one was."""
    place, me = ServiceFolder(tmp_path), this_process()
    live = Live(msgspec.structs.replace(me, started=me.started + 1), Address("/old", 0), 3)
    place.tell_live(live)
    lock = place.hold()
    assert not (tmp_path / "live.json").exists()
    place.tell_live(live)  # as if somebody read it before the next service was there
    assert place.live() is None
    place.tell_live(msgspec.structs.replace(live, owner=me))
    assert (place.live() or live).owner == me
    os.close(lock)
    assert place.live() is None


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


def test_to_revoke_a_board_by_its_id_ends_the_invitations_of_its_name(world: World) -> None:
    first = world.join(world.invite("pi"), world.board("a"))
    leaked = world.invite("pi", replace=True)
    with world.store.change() as registry:
        assert (registry.expel(first.board, NOW) or registry.boards[0]).revoked_s == NOW
    assert world.refused(leaked, world.board("thief"))[1].startswith("this token was withdrawn")
    world.invite("only")
    with world.store.change() as registry:
        assert registry.expel("only", NOW) is None
        with pytest.raises(UsageError, match="is revoked"):
            registry.expel("pi", NOW)


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


def test_the_kind_of_key_is_looked_at_before_the_signature_is_computed() -> None:
    """A signature of a DSA key of 10,000 bits takes 25 ms, of which strangers could ask for any number."""
    text = csr(rsa.generate_private_key(65537, 2048))
    damaged = bytearray(x509.load_pem_x509_csr(text.encode()).public_bytes(serialization.Encoding.DER))
    damaged[-1] ^= 1
    with pytest.raises(UsageError, match="none of EC P-256"):
        requested_key(x509.load_der_x509_csr(bytes(damaged)).public_bytes(serialization.Encoding.PEM).decode())


def test_a_csr_of_another_version_is_refused() -> None:
    """`cryptography` raises an error of its own for it."""
    request = x509.load_pem_x509_csr(csr(ec.generate_private_key(ec.SECP256R1())).encode())
    der = bytearray(request.public_bytes(serialization.Encoding.DER))
    place = der.index(b"\x02\x01\x00")
    der[place + 2] = 7
    pem = ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    with pytest.raises(UsageError, match="this is no CSR"):
        requested_key(pem)


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
    later = NOW + RENEW_PAUSE_S
    with ThreadPoolExecutor(8) as threads:
        renewed = list(threads.map(lambda each: world.enrolment.renew(Renew(each), later), [board.request()] * 8))
    before = world.folder.joinpath("registry.json").read_bytes()
    for within_s in (60, 3599):  # once an hour, as docs/security.md says
        assert world.enrolment.renew(Renew(board.request()), later + within_s) == renewed[0]
    assert set(map(str, renewed)) == {str(renewed[0])}
    assert [len(each.serials) for each in world.store.read().boards] == [2]
    assert world.folder.joinpath("registry.json").read_bytes() == before


def test_a_board_that_joined_while_the_hosts_clock_was_ahead_can_renew(world: World) -> None:
    board = world.board("a")
    ahead = NOW + 300 * DAY
    world.join(world.invite("pi", now=ahead), board, ahead)
    renewed = world.enrolment.renew(Renew(board.request()), NOW)
    assert x509.load_pem_x509_certificate(renewed.certificate.encode()).not_valid_before_utc.timestamp() < NOW


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
        registry.rename(registry.find("one"), "two", NOW)
        for wrong in ("one", one[:2], "zzzz"):
            with pytest.raises(UsageError, match="no board has the name or id"):
                registry.find(wrong)
        with pytest.raises(UsageError, match="no name for a board"):
            registry.rename(registry.find("two"), "a/b", NOW)
        registry.invite("three", "", 60.0, False, NOW)
        with pytest.raises(UsageError, match="a board three is invited"):
            registry.rename(registry.find("two"), "three", NOW + 59)
        with pytest.raises(UsageError, match="'three' was invited and has not joined"):
            registry.find("three")
        registry.rename(registry.find("two"), "three", NOW + 61)
        registry.revoke(registry.find("three"), "by hand", NOW)
        with pytest.raises(UsageError, match="'three' is revoked"):
            registry.find("three")


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


def test_an_empty_list_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = CliRunner().invoke(build(), ["boards", "ls"])
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "edgebed boards invite NAME" in result.stderr
    assert CliRunner().invoke(build(), ["boards", "ls", "--json"]).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "bad_host!"], "'bad_host!' is no host name"),
        (["--host", "mqtt://pi:1"], "is no host name"),
        (["--port", "7000", "--mqtt-port", "7000"], "are both 7000"),
    ],
)
def test_a_service_with_impossible_options_does_not_start(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(build(), ["boards", "serve", *words], catch_exceptions=False)


def test_a_profile_of_an_invitation_exists_and_is_found_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = ServiceFolder.of_user()
    place.tell_where(Where(("h",), 1, 2))
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    (work / "mine.yaml").write_text("cpus: 1\nuplink_mbit_s: 9\ndownlink_mbit_s: 9\nmemory_mib: 512\n")

    def invite(profile: str) -> str:
        CliRunner().invoke(build(), ["boards", "invite", "pi", "--profile", profile], catch_exceptions=False)
        kept = Store(place).read().invitations[-1].profile
        assert load_profile(kept, tmp_path / "elsewhere" / "fleet.yaml")
        return kept

    assert [invite("cpu1"), invite("mine"), invite("mine.yaml")] == ["cpu1", *[str(work / "mine.yaml")] * 2]
    for wrong in ("cpu1x", "gone.yaml"):
        with pytest.raises(UsageError, match=f"--profile: there is no device profile '{wrong}'") as refused:
            invite(wrong)
        assert "mine" in refused.value.hint or "gone.yaml" in refused.value.hint
    assert len(Store(place).read().invitations) == 3


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172800)])
def test_times(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds
    for wrong in (text[:-1], f"-{text}", "0s", f"{text}x", "31d"):
        with pytest.raises(UsageError, match="is no time"):
            duration_s(wrong)
