"""Cleaning up waits for what is being made; containers start on kernels without IPv6."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from edgebed.errors import FleetError
from edgebed.link.connection import Address
from orchestrator.fleet import leftovers
from orchestrator.fleet.docker import backend as containers
from orchestrator.fleet.making import CleanUp, Making
from orchestrator.fleet.network import links
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec

PATIENCE_S = 10.0
SPEC = FleetSpec("f", "docker", 0.5, (DeviceSpec("d", ProfileSpec("p", Limits(0.1, 10**6, 10**6, 256))),), Path("f"))


async def test_the_end_waits_for_a_thread_whose_caller_was_cancelled() -> None:
    making, began, go = Making(), threading.Event(), threading.Event()
    made: list[int] = []

    def work() -> None:
        for number in range(3):
            making.go_on()
            made.append(number)
            began.set()
            assert go.wait(PATIENCE_S)

    caller = asyncio.create_task(making.run(work))
    assert await asyncio.to_thread(began.wait, PATIENCE_S)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    end = asyncio.create_task(making.end())
    for _ in range(20):  # without the thread to wait for, it would end within a few steps of the loop
        await asyncio.sleep(0)
    assert not end.done()
    go.set()
    async with asyncio.timeout(PATIENCE_S):
        await end
    assert made == [0]  # the second was not begun


async def test_a_clean_up_is_finished_though_its_caller_is_cancelled_three_times() -> None:
    go, steps = asyncio.Event(), list[str]()

    async def work() -> None:
        steps.append("begun")
        await go.wait()
        steps.append("done")

    clean_up = CleanUp(work)
    caller = asyncio.create_task(clean_up.finish())
    for _ in range(3):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    await asyncio.wait([caller])
    assert caller.cancelled()
    await clean_up.finish()  # again: nothing is left to do
    assert steps == ["begun", "done"]


def test_a_clean_up_is_finished_though_the_loop_ends() -> None:
    """The end of `asyncio.run` cancels every task, the clean-up's own, too."""
    steps = list[str]()

    async def work() -> None:
        steps.append("begun")
        await asyncio.to_thread(steps.append, "thread")
        await asyncio.sleep(0)
        steps.append("done")

    async def main() -> None:
        asyncio.create_task(CleanUp(work).finish())  # noqa: RUF006 -- nobody waits for it
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert steps[0] == "begun"
    assert steps[-1] == "done"


async def test_a_clean_up_that_failed_is_tried_again_by_the_next_call() -> None:
    tries = list[int]()

    async def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise FleetError("busy", hint="again")

    clean_up = CleanUp(work)
    with pytest.raises(FleetError, match="busy"):
        await clean_up.finish()
    await clean_up.finish()
    await clean_up.finish()
    assert len(tries) == 2


async def test_results_and_errors_reach_the_caller() -> None:
    making = Making()
    assert await making.run(pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        await making.run(divmod, 1, 0)
    await making.end()
    with pytest.raises(FleetError, match="closed"):
        await making.run(making.go_on)


class Engine:
    """What of a docker client a container's start needs."""

    def __init__(self, said: str) -> None:
        self.said, self.started, self.removed = said, list[dict[str, Any]](), list[str]()
        self.containers = self.networks = self

    def info(self) -> dict[str, str]:
        return {}

    def list(self) -> list[Any]:
        return []

    def create(self, name: str, **settings: Any) -> Any:
        return SimpleNamespace(name=name)

    def events(self, **filters: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...

    def run(self, image: str, **settings: Any) -> Any:
        if "sysctls" in settings and self.said:
            raise docker.errors.APIError(self.said)
        self.started.append(settings)
        return SimpleNamespace(attrs={"State": {}}, id="c", reload=lambda: None)

    def get(self, name: str) -> Any:
        return SimpleNamespace(remove=lambda force: self.removed.append(name))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine("")
    monkeypatch.setattr(containers, "connect", lambda: made)
    monkeypatch.setattr(containers, "ensure_image", lambda *options: "image")
    monkeypatch.setattr(containers, "remove_fleet", lambda *options: None)
    monkeypatch.setattr(leftovers, "collect", list)
    return made


async def start() -> None:
    backend = containers.DockerBackend(SPEC, "f1", shaper=links.HostShaper())
    await backend.prepare()
    try:
        await backend.start({"d": Address("10.0.0.1", 1883, "u", "secret")}, {"d": Path("/s")})
    finally:
        await backend.close()


async def test_ipv6_is_switched_off_where_there_is_one(engine: Engine) -> None:
    await start()
    assert engine.started[0]["sysctls"] == {"net.ipv6.conf.all.disable_ipv6": "1"}


async def test_a_container_gets_its_password_by_a_file(engine: Engine) -> None:
    """`docker inspect` shows all that a container is started with."""
    await start()
    (settings,) = engine.started
    assert "secret" not in repr(settings)
    (source,) = [source for source, at in settings["volumes"].items() if at["bind"] == "/broker"]
    assert settings["environment"]["EDGEBED_BROKER_FILE"] == "/broker"
    assert not Path(source).parent.exists()  # removed with the fleet


async def test_a_kernel_without_ipv6_starts_containers_too(engine: Engine) -> None:
    engine.said = "open /proc/sys/net/ipv6/conf/all/disable_ipv6: no such file or directory"
    await start()
    assert engine.removed == ["edgebed-f1-d"]
    assert "sysctls" not in engine.started[0]
    assert engine.started[0]["cap_drop"] == ["ALL"]


async def test_other_refusals_of_the_engine_are_told(engine: Engine) -> None:
    engine.said = "no space left on device"
    with pytest.raises(FleetError, match="no space left"):
        await start()
    assert engine.started == []
