"""A boards service without a network, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.board.keystore import Keystore
from edgebed.wire.boards import Enrolled, Join
from orchestrator.boards.authority import Authority
from orchestrator.boards.enrolment import Enrolment, Refused
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder

NOW = 1_800_000_000.0
DAY = 86400.0


class World:
    """A service without a network, and boards in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = ServiceFolder(folder)
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
