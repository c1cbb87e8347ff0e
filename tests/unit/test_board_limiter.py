"""What a board refuses that cannot limit itself, and that nothing stays then. `ip` and `tc` are scripts here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.board.limiter import Limiter
from edgebed.errors import LimitError
from edgebed.limits.spec import Limits

LIMITS = Limits(0.5, 10_000_000, 20_000_000, 512, latency_ms=5.0)
HOST = "192.0.2.1"
SCRIPT = """#!/bin/sh
echo "$(basename $0) $*" >> {log}
case "$*" in
  *"{fails}"*) echo "{says}" >&2; exit 2;;
  *"route get"*) echo '[{{"dev": "{interface}"}}]';;
  *"qdisc show"*) echo '{qdiscs}';;
  *"link show"*) echo '[]';;
esac
"""


class Tools:
    """`ip` and `tc` of a board; they note how they were called."""

    def __init__(self, folder: Path, **said: str) -> None:
        self.log = folder / "log"
        values = {"fails": "nothing", "says": "", "interface": "eth0", "qdiscs": "[]"} | said
        for name in ("ip", "tc"):
            path = folder / name
            path.write_text(SCRIPT.format(log=self.log, **values))
            path.chmod(0o755)

    @property
    def called(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("fails", "says", "module"),
    [
        ("netem", "Error: Specified qdisc kind is unknown.", "sch_netem"),
        ("tbf", "Error: Specified qdisc kind is unknown.", "sch_tbf"),
        ("type ifb", "Error: Unknown device type.", "ifb"),
        ("ingress", "Error: Specified qdisc kind is unknown.", "sch_ingress"),
        ("mirred", "RTNETLINK answers: No such file or directory", "cls_u32 and act_mirred"),
    ],
)
def test_a_module_that_the_kernel_lacks_is_named_and_nothing_stays(
    tmp_path: Path, fails: str, says: str, module: str
) -> None:
    tools = Tools(tmp_path, fails=fails, says=says)
    with pytest.raises(LimitError, match=f"lacks {module}: ") as error:
        Limiter(tmp_path, HOST).hold(LIMITS, os.getpid())
    assert says in str(error.value)
    assert error.value.hint.startswith("modprobe ")
    assert not (tmp_path / "limits.json").exists()
    assert {"tc qdisc del dev eth0 root", "tc qdisc del dev eth0 ingress", "ip link del edgebed0"} <= set(tools.called)


def test_what_a_user_has_set_on_the_interface_stays(tmp_path: Path) -> None:
    tools = Tools(tmp_path, qdiscs='[{"kind": "htb", "handle": "1:", "root": true}]')
    with pytest.raises(LimitError, match="eth0 has a queueing discipline already: htb"):
        Limiter(tmp_path, HOST).hold(LIMITS, os.getpid())
    assert not [call for call in tools.called if "replace" in call or "del" in call]


def test_the_kernel_s_own_queueing_discipline_is_none_of_a_user(tmp_path: Path) -> None:
    Tools(tmp_path, qdiscs='[{"kind": "fq_codel", "handle": "0:", "root": true}]', fails="tbf", says="no")
    with pytest.raises(LimitError, match="sch_tbf"):
        Limiter(tmp_path, HOST).hold(LIMITS, os.getpid())


def test_a_service_on_the_board_itself_cannot_be_limited(tmp_path: Path) -> None:
    Tools(tmp_path, interface="lo")
    with pytest.raises(LimitError, match="its loopback is not limited"):
        Limiter(tmp_path, HOST).hold(LIMITS, os.getpid())


def test_without_root_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LimitError, match="only root can limit a board") as error:
        Limiter(tmp_path, HOST).hold(LIMITS, os.getpid())
    assert "--service" in error.value.hint


def test_a_board_without_a_note_undoes_nothing(tmp_path: Path) -> None:
    tools = Tools(tmp_path)
    Limiter(tmp_path, HOST).undo()
    assert not tools.log.exists()
    (tmp_path / "limits.json").write_text("damaged")
    Limiter(tmp_path, HOST).undo()
    assert not tools.log.exists()
