"""FedGKT: both KL terms, whose logits reach whom, and extractors that nobody averages."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import msgspec
import pytest
import torch
from torch import nn

from edgebed.errors import UsageError
from edgebed.methods.base import Contribution, find_half
from edgebed.methods.fedgkt import KNOWN, LOGITS, OPTIMIZER, CommonUpper, FedGKT, server_logits
from edgebed.methods.parts.distillation import distillation
from edgebed.models.staged import GIVEN, MODELS, StagedModel, Weights, seeded, without_prefix
from edgebed.wire.order import shuffled
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.testing.rounds import CPU, SCHEDULE, batches_of, make_method, play, shard, small_model, view

SGD = msgspec.structs.replace(SCHEDULE, optimizer=Optimizer("sgd", 0.05))


def method(**options: object) -> FedGKT:
    made = make_method("fedgkt", **options)
    assert isinstance(made, FedGKT)
    return made


def test_distillation_worked_by_hand() -> None:
    """T = 3, teacher (3 ln 3, 0), student (0, 0): p = (3/4, 1/4), q = (1/2, 1/2), KL = ln 2 - H(p); times 9."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[3 * math.log(3), 0.0]])
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(distillation(student, teacher, 3.0)) == pytest.approx(9 * kl)
    assert float(distillation(teacher, teacher, 3.0)) == pytest.approx(0.0, abs=1e-6)


def plain_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    p = (teacher / 3).softmax(1)
    return 9 * (p * (p.log() - (student / 3).log_softmax(1))).sum(1).mean()


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_device_trains_on_the_labels_and_on_the_servers_logits_of_the_same_samples(epochs: int) -> None:
    """Over all its epochs, each in an order of its own; features of the last one go up. The server has no logits of row
    3 of the shard."""
    schedule = msgspec.structs.replace(SGD, epochs=epochs)
    assignment = method().plan(4, [view("a")], schedule).assignments["a"]
    batches = list(batches_of(shard("a"), assignment))
    given = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    known = torch.arange(10) != 3
    model, plain = small_model().train(), small_model().train()
    model.load({LOGITS: given, KNOWN: known})
    half = find_half("gkt")(model, assignment, batches)
    uploads = [{name: value.clone() for name, value in next(half).tensors.items()} for _ in range(3)]
    with pytest.raises(StopIteration) as end:
        next(half)
    assert end.value.value.batches == 3 * epochs
    optimizer = torch.optim.SGD([*plain.lower(1).parameters(), *plain.head(1).parameters()], lr=0.05)
    orders = [row for epoch in range(epochs) for row in shuffled(10, assignment.seed, epoch).split(4)]
    for number, ((x, y), rows) in enumerate(zip(batches, orders, strict=True)):
        z = plain.lower(1)(x)
        logits = plain.head(1)(z)
        if number >= 3 * (epochs - 1):
            sent = uploads[number - 3 * (epochs - 1)]
            torch.testing.assert_close(sent["features"], z, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(sent["logits"], logits, atol=1e-5, rtol=1e-4)
            assert torch.equal(sent["labels"], y)
        taught = known[rows]
        kl = plain_kl(logits[taught], given[rows][taught]) * taught.sum() / len(rows)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, y) + kl).backward()
        optimizer.step()
    for name, value in end.value.value.weights.items():
        torch.testing.assert_close(value, plain.state_dict()[name], atol=1e-5, rtol=1e-4)


def server_uploads(*devices: str) -> dict[str, Weights]:
    generator = torch.Generator().manual_seed(0)
    return {
        device: {
            "features": torch.randn(4, 3, 6, 6, generator=generator),
            "labels": torch.tensor([0, 1, 2, 3]),
            "logits": torch.randn(4, 4, generator=generator),
        }
        for device in devices
    }


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_server_trains_one_model_on_the_batches_of_all_and_answers_after_the_step(epochs: int) -> None:
    """Two devices with two batches each, in the order of names; as many epochs; logits of the last one, each batch's
    after the step on it."""
    model = small_model()
    plan = method().plan(0, [view("a", 8), view("b", 8)], SGD)
    assignments = {"b": plan.assignments["b"], "a": plan.assignments["a"]}
    upper = CommonUpper(model, model.weights(), assignments, 3.0, CPU, epochs)
    steps = [server_uploads("b", "a"), server_uploads("a", "b")]
    assert [upper.step(uploads) for uploads in steps] == [{}, {}]
    plain = copy.deepcopy(model.upper(1)).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    answers = {}
    for epoch in range(epochs):
        for number, uploads in enumerate(steps):
            for device in ("a", "b"):
                sent = uploads[device]
                logits = plain(sent["features"])
                optimizer.zero_grad()
                (nn.functional.cross_entropy(logits, sent["labels"]) + plain_kl(logits, sent["logits"])).backward()
                optimizer.step()
                if epoch == epochs - 1:
                    with torch.no_grad():
                        answers[device, number] = copy.deepcopy(plain)(sent["features"])
    for (device, number), expected in answers.items():
        torch.testing.assert_close(upper.logits[device][number], expected, atol=1e-5, rtol=1e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(upper.weights()[name], value, atol=1e-5, rtol=1e-4)


def test_the_simulator_is_told_of_every_epoch_of_the_server() -> None:
    """Two batches of four samples; the last epoch's answers are a forward pass more, a third of a step."""
    model = small_model()
    upper = CommonUpper(model, model.weights(), method().plan(0, [view("a", 8)], SGD).assignments, 3.0, CPU, 3)
    for expected in ([("a", 4)], [("a", 4)] * 3 + [("a", 5)] * 2):
        uploads = server_uploads("a")
        upper.step(uploads)
        assert upper.worked(uploads) == expected


def test_the_server_s_epochs_are_made_up_for_where_the_device_with_the_most_batches_is_lost() -> None:
    model = small_model()
    assignments = method().plan(0, [view("a", 4), view("b", 8)], SGD).assignments
    upper = CommonUpper(model, model.weights(), assignments, 3.0, CPU, 2)
    upper.step(server_uploads("a", "b"))
    assert not upper.logits["a"]
    upper.weights()
    assert set(upper.logits["a"]) == {0}


async def test_own_extractors_and_logits_come_down_again_and_are_merged_with_nobodys() -> None:
    made, before = method(), small_model().weights()
    after = await play(made, before, {"a": 10, "b": 9}, range(1))
    names = small_model().names_below(1, head=True)
    assert all(torch.equal(after[name], before[name]) for name in names), "the global lower stages stay"
    first, second = made.plan(1, [view("a"), view("b")], SCHEDULE).assignments.values()
    tasks = [made.task_weights(after, each) for each in (first, second)]
    assert [task[LOGITS].shape for task in tasks] == [(10, 4), (9, 4)]
    trained = "md1.conv.weight"
    assert len({tuple(weights[trained].flatten().tolist()) for weights in (*tasks, before)}) == 3
    new = made.task_weights(after, made.plan(1, [view("new")], SCHEDULE).assignments["new"])
    state = without_prefix(new, GIVEN + OPTIMIZER)
    assert set(new) - set(names) == {f"{GIVEN}{OPTIMIZER}{name}" for name in state}
    assert not any(value.any() for value in state.values()), "a new optimizer remembers nothing"


async def test_logits_find_their_samples_again_in_another_order_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round has an order of its own; what comes down is by row of the shard."""
    made, answered, merge = method(), dict[int, torch.Tensor](), FedGKT.merge

    def seen(self: FedGKT, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        answered.update(server_logits(contributions[0].server_weights, "a"))
        return merge(self, weights, contributions)

    monkeypatch.setattr(FedGKT, "merge", seen)
    await play(made, small_model().weights(), {"a": 10}, range(1))
    first, second = (made.plan(number, [view("a")], SCHEDULE).assignments["a"] for number in (0, 1))
    assert first.seed != second.seed
    rows = shuffled(10, first.seed, 0)
    by_batch = torch.cat([answered[number] for number in range(3)])
    task = made.task_weights(small_model().weights(), second)
    assert torch.equal(task[LOGITS][rows], by_batch)
    assert task[KNOWN].all()


async def test_with_a_few_batches_of_an_epoch_logits_are_known_of_their_samples_alone() -> None:
    made = method()
    schedule = msgspec.structs.replace(SCHEDULE, max_batches=1)
    assignment = made.plan(0, [view("a")], schedule).assignments["a"]
    (half,) = made.server_halves(small_model().weights(), {"a": assignment}, CPU)
    half.step(server_uploads("a"))
    lower = small_model().weights()
    made.merge(lower, [Contribution("a", 10, assignment, lower, half.weights())])
    rows = shuffled(10, assignment.seed, 0)[:4]
    assert sorted(made.known["a"].nonzero().flatten().tolist()) == sorted(rows.tolist())


def test_several_local_epochs_make_one_epoch_s_uploads() -> None:
    made = method()
    assignment = made.plan(0, [view("a")], msgspec.structs.replace(SCHEDULE, epochs=4)).assignments["a"]
    assert made.count_uploads(assignment, 12) == 3


async def test_the_score_is_the_mean_over_the_devices() -> None:
    made = method()
    weights = await play(made, small_model().weights(), {"a": 10, "b": 9}, range(1))
    x, y = shard("test", 40)
    score = made.evaluate(weights, x, y, CPU)
    right = []
    for device in ("a", "b"):
        whole = small_model()
        whole.load({**weights, **made.own[device]})
        right.append(float((whole.eval()(x).argmax(1) == y).float().mean()))
    assert score.accuracy == pytest.approx(sum(right) / 2)
    assert (score.extra["worst device"], score.extra["best device"]) == pytest.approx((min(right), max(right)))


def test_another_number_of_samples_than_before_is_refused() -> None:
    assignment = method().plan(0, [view("a")], SCHEDULE).assignments["a"]
    model = small_model()
    model.load({LOGITS: torch.zeros(7, 4), KNOWN: torch.ones(7, dtype=torch.bool)})
    half = find_half("gkt")(model, assignment, list(batches_of(shard("a"), assignment)))
    next(half)
    with pytest.raises(UsageError, match="of 7 samples"):
        next(half)


# ---- as the paper has it: the cut, the classifier, optimizers that last ----


@pytest.mark.parametrize(("name", "stages"), [("resnet56", 591_322), ("resnet110", 1_147_738)])
def test_the_device_has_the_stem_and_a_classifier_of_two_bottlenecks(name: str, stages: int) -> None:
    """He et al.: features are the stem's output, 6.55 MB for 100 pictures; two bottleneck blocks of width 16, pool and
    fc, by hand: 16·16 + 9·16·16 + 16·64 and a projection of 16·64, then 64·16 + 9·16·16 + 16·64, two parameters for
    each channel of a batch norm, and 64·10 + 10."""
    made = FedGKT()
    spec = made.model_spec({"name": name})
    model = MODELS.create(spec).build(LearningTask((3, 32, 32), 10))
    assert made.options.cut == 1
    assert 4 * 100 * math.prod(model.feature_shape(1)) == 6_553_600
    first = 16 * 16 + 9 * 16 * 16 + 2 * 16 * 64 + 2 * (16 + 16 + 64 + 64)
    second = 64 * 16 + 9 * 16 * 16 + 16 * 64 + 2 * (16 + 16 + 64)
    assert sum(each.numel() for each in model.head(1).parameters()) == first + second + 650 == 10_122
    assert sum(w.numel() for n, w in model.named_parameters() if not n.startswith("head")) == stages


def test_only_models_with_such_a_head_get_one_and_what_the_experiment_says_stays() -> None:
    made = FedGKT()
    assert made.model_spec({"name": "resnet8"}) == {"name": "resnet8"}
    assert made.model_spec({"name": "resnet-tiny", "head_blocks": 1}) == {"name": "resnet-tiny", "head_blocks": 1}


def test_other_heads_leave_the_stages_as_their_seed_makes_them() -> None:
    def build(spec: dict[str, object]) -> StagedModel:
        return seeded(lambda: MODELS.create(spec).build(LearningTask((1, 8, 8), 10)), 3)

    plain, other = build({"name": "resnet-tiny"}), build(FedGKT().model_spec({"name": "resnet-tiny"}))
    weights = other.weights()
    assert all(torch.equal(value, weights[name]) for name, value in plain.upper(0).state_dict().items())


MOMENTS = [Optimizer("adam", 0.01), Optimizer("adam", 0.01, amsgrad=True), Optimizer("sgd", 0.05, momentum=0.9)]


@pytest.mark.parametrize("spec", MOMENTS, ids=["adam", "amsgrad", "momentum"])
async def test_optimizers_go_on_from_round_to_round_on_both_sides(
    spec: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of one device equal plain torch with one optimizer for each side over both."""
    schedule = msgspec.structs.replace(SCHEDULE, optimizer=spec)
    monkeypatch.setattr("orchestrator.testing.rounds.SCHEDULE", schedule)
    made, plain = method(), small_model().train()
    weights = await play(made, small_model().weights(), {"a": 10}, range(2))

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if spec.name == "sgd":
            return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum)
        return torch.optim.Adam(parameters, lr=spec.lr, amsgrad=spec.amsgrad)

    lower = optimizer([*plain.lower(1).parameters(), *plain.head(1).parameters()])
    upper = optimizer(list(plain.upper(1).parameters()))
    answers = torch.zeros(10, 4)
    for round in range(2):
        assignment = made.plan(round, [view("a")], schedule).assignments["a"]
        rows = shuffled(10, assignment.seed, 0).split(4)
        given = answers.clone()
        for (x, y), chosen in zip(batches_of(shard("a"), assignment), rows, strict=True):
            z = plain.lower(1)(x)
            logits = plain.head(1)(z)
            loss = nn.functional.cross_entropy(logits, y)
            lower.zero_grad()
            (loss + plain_kl(logits, given[chosen]) if round else loss).backward()
            lower.step()
            out = plain.upper(1)(z.detach())
            upper.zero_grad()
            (nn.functional.cross_entropy(out, y) + plain_kl(out, logits.detach())).backward()
            upper.step()
            with torch.no_grad():
                answers[chosen] = copy.deepcopy(plain.upper(1))(z.detach())
    found = {**weights, **{name: value for name, value in made.own["a"].items() if not name.startswith(GIVEN)}}
    for name, value in plain.named_parameters():
        if not name.endswith("conv.bias"):  # batch norm cancels it: its gradient is rounding, which Adam makes large
            torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-3, msg=name)


def test_more_features_than_the_server_may_keep_are_refused_with_the_figure() -> None:
    """2 devices x 10,000 samples x 432 bytes; with one epoch it keeps none."""
    devices = [view("a", 10_000), view("b", 10_000)]
    method(features_mib=8).plan(0, devices, SCHEDULE)
    method(features_mib=9, server_epochs=2).plan(0, devices, SCHEDULE)
    with pytest.raises(UsageError, match=r"20000 samples × 432 bytes \(after stage 1\) = 9 MiB") as caught:
        method(features_mib=8, server_epochs=2).plan(0, devices, SCHEDULE)
    assert "features_mib to 9" in caught.value.hint
    few = msgspec.structs.replace(SCHEDULE, max_batches=1)
    method(features_mib=1, server_epochs=2).plan(0, devices, few)
