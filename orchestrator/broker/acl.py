"""Who may read and write which topics on a broker of ours. Pure.

The orchestrator's user may do all; a device's user, which has the device's name, uses the topics of this device only.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgebed.wire.boards import WAITING
from edgebed.wire.topics import ORCHESTRATOR, Topics


def readable(fleet: str, device: str) -> tuple[str, ...]:
    topics = Topics(fleet)
    return topics.control_to(device), topics.data_to(device)


def writable(fleet: str, device: str) -> tuple[str, ...]:
    topics = Topics(fleet)
    return topics.control_from(device), topics.data_from(device), topics.state(device)


def may(fleet: str, user: str, topic: str, *, write: bool) -> bool:
    """Whether a user may publish to a topic, or subscribe to it. No filter with `+` or `#` is a device's."""
    return user == ORCHESTRATOR or topic in (writable(fleet, user) if write else readable(fleet, user))


def mosquitto_lines(fleet: str, ours: str = "#") -> list[str]:
    """The lines of Mosquitto's ACL file; it puts the user's name for %u.

    Args:
        fleet: `+` stands for every fleet.
        ours: the topics of the orchestrator.
    """
    return [
        f"user {ORCHESTRATOR}",
        f"topic readwrite {ours}",
        *(f"pattern read {topic}" for topic in readable(fleet, "%u")),
        *(f"pattern write {topic}" for topic in writable(fleet, "%u")),
        "",
    ]


def board_lines(boards: Mapping[str, str]) -> list[str]:
    """The ACL file of the boards' broker. Who is not named in it has no right, also in a session that is open.

    Args:
        boards: the fleet that each board works for, by the board's id; "" where it waits.
    """
    lines = [f"user {ORCHESTRATOR}", "topic readwrite #"]
    for board, fleet in sorted(boards.items()):
        lines += [f"user {board}", f"topic read {WAITING.control_to(board)}", f"topic write {WAITING.state(board)}"]
        if fleet:
            lines += [f"topic read {topic}" for topic in readable(fleet, board)]
            lines += [f"topic write {topic}" for topic in writable(fleet, board)]
    return [*lines, ""]
