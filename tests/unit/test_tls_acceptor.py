"""Who may stay of the connections without a certificate."""

from __future__ import annotations

import pytest

from edgebed.link.tls_acceptor import Crowd, group_of, is_hello


def crowd(*members: str) -> Crowd[str]:
    """A member's first letter is its group."""
    made = Crowd[str]()
    for member in members:
        made.add(member, member[:1].encode())
    return made


def test_the_oldest_of_the_largest_group_goes_next() -> None:
    there = crowd("a1", "b1", "b2", "a2", "b3", "c1")
    left = []
    while len(there):
        left.append(there.next_out())
        there.remove(left[-1])
    assert left == ["b1", "a1", "b2", "a2", "b3", "c1"]


def test_of_groups_of_one_the_oldest_goes_next() -> None:
    there = crowd("a1", "b1", "c1")
    there.add("a2", b"a")
    there.remove("a1")  # its group is the first one, but no longer has the oldest
    assert there.next_out() == "b1"


def test_one_address_pushes_out_its_own_only() -> None:
    there = crowd("victim")
    for number in range(1000):
        there.add(f"x{number}", b"x")
        if len(there) > 256:
            there.remove(there.next_out())
    assert len(there) == 256
    assert next(iter(there)) == "victim"
    assert "x999" in list(there)


def test_who_is_gone_can_go_again() -> None:
    there = crowd("a1")
    there.remove("a1")
    there.remove("a1")
    assert len(there) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_group_is_an_address_or_a_network_of_64_bits(one: str, other: str, same: bool) -> None:
    assert (group_of(one) == group_of(other)) is same


@pytest.mark.parametrize(
    ("start", "hello"),
    [
        ("160301020001", True),
        ("160303004001", True),
        ("1603010200", False),
        ("", False),
        ("160301020002", False),
        ("150301000201", False),
        ("160201020001", False),
        ("474554202f20", False),
    ],
)
def test_a_hello_is_known_by_its_first_bytes(start: str, hello: bool) -> None:
    assert is_hello(bytes.fromhex(start)) is hello
