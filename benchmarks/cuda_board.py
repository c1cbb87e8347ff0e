"""A task of every device half on a CUDA device and on the CPU: how far the weights differ, and seconds of computing."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch

from benchmarks._figures import figure, skip
from edge_agent.accelerator import CPU, accelerator_facts
from edge_agent.training import DeviceTrainer
from edgebed.datasets.shard import VERSION, About, Shard
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.models.staged import MODELS, Weights, seeded
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from edgebed.wire.settings import Codec, LearningTask, Optimizer

SHAPE, CLASSES, SAMPLES, BATCH = (3, 32, 32), 10, 512, 64
MODEL: dict[str, object] = {"name": "resnet-tiny"}
HALVES: dict[str, dict[str, Any]] = {
    "output": {"stages": 8, "uploads": ("weights",)},
    "head": {"stages": 4, "uploads": ("features", "weights")},
    "server": {"stages": 4, "uploads": ("features", "weights")},
    "prox": {"stages": 8, "uploads": ("weights",), "options": {"mu": 0.1}},
    "gkt": {"stages": 4, "uploads": ("features", "logits"), "options": {"temperature": 3.0, "samples": SAMPLES}},
}


class Server:
    """The `TaskIO` of a task: it answers features with a gradient."""

    def __init__(self) -> None:
        self.metrics, self._last = TaskMetrics(), dict[str, torch.Tensor]()

    def upload(self, header: Upload, body: bytes | bytearray) -> None:
        self._last = decode_tensors(bytes(body))

    def reply(self, batch: int) -> bytes:
        return bytes(encode_tensors({"gradient": self._last["features"] * 0.01}, Codec()))

    def check(self) -> None: ...
    def progress(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def hold(self) -> None: ...
    def pace(self) -> None: ...


def train(objective: str, accelerator: torch.device) -> tuple[Weights, float]:
    """The weights after one epoch, and the seconds of computing."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (SAMPLES, *SHAPE), dtype=torch.uint8, generator=generator)
    about = About(VERSION, (0.5,) * 3, (0.5,) * 3, CLASSES)
    trainer = DeviceTrainer(
        Shard(x, torch.arange(SAMPLES) % CLASSES, about, "", accelerator), PhaseLog(time.monotonic_ns)
    )
    sgd = Optimizer("sgd", lr=0.01)
    whole = Assignment("d", MODEL, CLASSES, SHAPE, 0, objective, batch_size=BATCH, optimizer=sgd)
    assignment = msgspec.structs.replace(whole, **HALVES[objective])
    weights = seeded(lambda: MODELS.create(MODEL).build(LearningTask(SHAPE, CLASSES)), 1).weights()
    if objective == "gkt":
        weights |= {"given.logits": torch.zeros(SAMPLES, CLASSES), "given.known": torch.ones(SAMPLES, dtype=torch.bool)}
    server = Server()
    result = trainer.run(Task("t", "", 0, assignment), encode_tensors(weights, Codec()), server, threads=1)
    return decode_tensors(bytes(result.body)), server.metrics.compute_s


def compare(objective: str, accelerator: torch.device) -> None:
    (ours, _), (theirs, slow_s) = train(objective, accelerator), train(objective, CPU)
    again, quick_s = train(objective, accelerator)
    apart = max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in theirs)
    repeats = all(torch.equal(ours[name], again[name]) for name in ours)
    note = f"{quick_s:.3f} of {slow_s:.3f} s; {'repeats' if repeats else 'DOES NOT REPEAT'} to the bit"
    figure(f"{objective}: largest difference of a weight", apart, most=1e-3, note=note)


def main() -> None:
    if not torch.cuda.is_available():
        skip("needs a CUDA device")
        return
    accelerator = torch.device("cuda")
    print(f"  {accelerator_facts(accelerator)['accelerator']}, torch {torch.__version__}")
    for objective in HALVES:
        compare(objective, accelerator)
