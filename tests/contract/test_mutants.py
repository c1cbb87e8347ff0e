"""Methods with one mistake each: a check of the contract suite finds it, and says what is wrong in these words."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgebed.methods
from edgebed.errors import EdgebedError
from edgebed.methods.base import METHODS
from edgebed.plugin_code import read_plugin, use
from orchestrator.testing.methods import (
    Case,
    Check,
    brings_its_change_alone_however_late,
    cases_of,
    gets_better_at_what_it_trains_on,
    goes_on_when_an_agent_is_started_again,
    resumes_to_the_same_weights_and_plans,
    what_it_keeps_drives_it_nowhere_else,
)
from tests.strangers import alone

__all__ = ["alone"]

METHODS_FOLDER = Path(edgebed.methods.__file__).parent
KEEPS, LATE = what_it_keeps_drives_it_nowhere_else, brings_its_change_alone_however_late
MUTANTS: dict[str, tuple[str, str, str, Check, str]] = {
    "the correction": ("scaffold", "(c[name] - c_i[name]) * y", "(c_i[name] - c[name]) * y", KEEPS, "wrong sign"),
    "the way in c_i": ("scaffold", "(x[name] - y[name]) / k_lr", "(y[name] - x[name]) / k_lr", KEEPS, "wrong sign"),
    "c in c_i": ("scaffold", "c_i[name] - c[name] + (x", "c_i[name] + c[name] + (x", KEEPS, "wrong sign"),
    "c_i in c_i": ("scaffold", "c_i[name] - c[name] + (x", "-c_i[name] + c[name] + (x", KEEPS, "wrong sign"),
    "the server's c": ("scaffold", "c + torch.stack", "c - torch.stack", KEEPS, "wrong sign"),
    "a copy of another state": (
        "scaffold",
        "return self.c_i.get(device, {})",
        "return {name: -value for name, value in self.c_i.get(device, {}).items()}",
        goes_on_when_an_agent_is_started_again,
        "does not follow from the weights",
    ),
    "no c in a checkpoint": (
        "scaffold",
        'self.c, self.c_i = without_prefix(tensors, "c/"), {}',
        "self.c_i = {}",
        resumes_to_the_same_weights_and_plans,
        "forgets something",
    ),
    "the server's step": (
        "fedbuff",
        "w - lr / self.memory.updates",
        "w + lr / self.memory.updates",
        gets_better_at_what_it_trains_on,
        "the loss on the devices' samples is",
    ),
    "staleness": ("fedbuff", "1 / (1 + staleness) ** 0.5", "(1 + staleness) ** 0.5", LATE, "by 0.236 of its length"),
    "the newest weights as base": ("fedbuff", "part.base[name] if", "w if", LATE, "`merges_models = True`"),
    "no buffer in a checkpoint": (
        "fedbuff",
        "self.buffer = dict(tensors)",
        "self.buffer = {}",
        resumes_to_the_same_weights_and_plans,
        "forgets something",
    ),
}  # fmt: skip


def plugged(folder: Path, mistake: str, module: str = "") -> Case:
    """Use a copy of a method with a mistake in it, under a name of its own; a case of it."""
    method, right, wrong, _, _ = MUTANTS[mistake]
    module = module or f"mutant_{list(MUTANTS).index(mistake)}"
    source = (METHODS_FOLDER / f"{method}.py").read_text("utf-8")
    assert source.count(right) == 1, "the mistake is no longer one"
    for call in ("name = ", "@device_half(", "objective="):
        source = source.replace(f'{call}"{method}"', f'{call}"{module}"')
    (folder / f"{module}.py").write_text(source.replace(right, wrong), "utf-8")
    use([read_plugin(str(folder / f"{module}.py"))])
    return cases_of(module)[-1]  # its last variant


@pytest.mark.parametrize("mistake", MUTANTS)
async def test_a_mistake_is_found_and_told(mistake: str, tmp_path: Path) -> None:
    *_, check, words = MUTANTS[mistake]
    with pytest.raises((AssertionError, EdgebedError)) as found:
        await check(plugged(tmp_path, mistake))
    assert words in str(found.value)


async def test_whole_models_are_merged_where_a_method_says_so(tmp_path: Path) -> None:
    """As FedAsync merges them: that is no mistake then."""
    case = plugged(tmp_path, "the newest weights as base", "mutant_models")
    METHODS.classes()[case[0]].merges_models = True
    await LATE(case)
