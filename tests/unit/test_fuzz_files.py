"""Whatever stands in an experiment, fleet or profile file: it is read, or refused in words with a hint."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.errors import EdgebedError, Mistakes
from orchestrator.experiment import load
from orchestrator.files.yaml_file import parse, write_yaml
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec, load_fleet, load_profile
from orchestrator.runs.feasibility import check_fleet

PROFILES = Path(__file__).parents[2] / "profiles"
FLEET = FleetSpec("f", "local", 0.5, (DeviceSpec("d", ProfileSpec("p", Limits(1, 1, 1, 64))),), PROFILES / "f.yaml")


def experiment(path: Path) -> None:
    check_fleet(load(path), FLEET, path)


def profile(path: Path) -> None:
    load_profile(str(path), path)


FULL = """
name: full
fleet: ../fleets/dtfl-5.yaml
data: {name: digits, test_share: 0.2}
partition: {kind: dirichlet, alpha: 0.5, shares: [1, 2]}
privacy: {dcor_alpha: 0.5, profiles: {cpu0.1: {dcor_alpha: 0.25}}, devices: {d: {patch_shuffle: 4}}}
model: {name: resnet-tiny}
methods: [{name: dtfl, tiers: 7}, {name: fedavg}]
training: {rounds: 30, target_accuracy: 0.9, optimizer: {name: sgd, lr: 1e-3, momentum: 0.9}, plateau: {factor: 0.5},
  codec: {dtype: uint8}, sample: 0.5, seed: 3, deadline_s: 10, quorum: 1}
environment: {every: 10, share: 0.3, profiles: [cpu1]}
simulation: {cost: flops, faults: [{device: d, round: 1, after_s: 0.5}], as_if: {model: {name: resnet56}}}
dilation: 2.5
"""
KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "experiment": (experiment, FULL),
    "fleet": (load_fleet, (PROFILES / "fleets" / "dtfl-5.yaml").read_text()),
    "profile": (profile, (PROFILES / "devices" / "raspberry-pi-4.yaml").read_text()),
}
PARSED = {kind: parse(text, Path("f.yaml"))[0] for kind, (_, text) in KINDS.items()}
MARKS = [*"{}[]:,-?&*!|>'\"#%@`~\n\t ", "<<: ", "&a ", "*a", "!!python/object:x.y ", "---\n", "1e999", ".nan", "\\x00"]
TOKENS = st.sampled_from(MARKS)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 2**64, 10**400, 1e-320, "1e3", "../..", "a/b", "x" * 300, "~", "dtfl", "cpu1"])
    | st.floats()
    | st.text(max_size=10)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
files = itertools.count()


def tried(kind: str, content: bytes, folder: Path) -> None:
    """Read it; nothing but an error with a hint may come of it."""
    path = folder / f"{next(files)}.yaml"
    path.write_bytes(content)
    error = refusal(kind, path)
    path.unlink()
    if error is not None:
        assert str(path) in str(error)
        assert error.hint
        assert all(len(str(each)) < 1000 for each in (error.each if isinstance(error, Mistakes) else [error]))


def refusal(kind: str, path: Path) -> EdgebedError | None:
    try:
        KINDS[kind][0](path)
    except EdgebedError as error:
        return error
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def places(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, inner in items for found in places(inner, (*place, key)))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_itself_is_taken(kind: str, folder: Path) -> None:
    path = folder / "itself.yaml"
    path.write_text(KINDS[kind][1])
    KINDS[kind][0](path)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=80))
def test_arbitrary_bytes(kind: str, folder: Path, content: bytes) -> None:
    tried(kind, content, folder)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), TOKENS), min_size=1, max_size=6))
def test_texts_with_pieces_cut_out_and_put_in(kind: str, folder: Path, edits: list[tuple[int, int, str]]) -> None:
    text = KINDS[kind][1]
    for at, length, put in edits:
        at %= len(text) + 1
        text = text[:at] + put + text[at + length :]
    tried(kind, text.encode("utf-8", "surrogatepass"), folder)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_values_of_any_kind_at_any_place(kind: str, folder: Path, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(PARSED[kind])[1:]))
    inner = values = copy.deepcopy(PARSED[kind])
    for step in place[:-1]:
        inner = inner[step]
    if data.draw(st.booleans()) and isinstance(place[-1], str):
        inner[data.draw(st.text(max_size=8))] = inner.pop(place[-1])  # another key
    else:
        inner[place[-1]] = data.draw(VALUES)
    tried(kind, write_yaml(values), folder)


@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.sampled_from(["training", "methods", "privacy", "0", "", "a"]) | st.text(max_size=4)),
    data=st.data(),
)
def test_any_override_of_the_command_line(folder: Path, keys: list[str], data: st.DataObject) -> None:
    value = data.draw(
        st.text(max_size=12) | st.sampled_from(["{a: 1, a: 2}", "*a", "[", "1e999", "{rounds: 1}", "x: y: z"])
    )
    path = folder / "override.yaml"
    path.write_text(FULL)
    try:
        load(path, [f"{'.'.join(keys)}={value}"])
    except EdgebedError as error:
        hint = error.hint
    else:
        hint = "none needed"
    assert hint
