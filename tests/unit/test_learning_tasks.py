"""Rows of tables and sequences of tokens: their data sets, shards, loss, model, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from edgebed.datasets.base import DATASETS, Split
from edgebed.datasets.shard import About, Shard, read_shard, write_shard
from edgebed.errors import RunError, UsageError
from edgebed.methods.parts import evaluation
from edgebed.methods.parts.evaluation import evaluate
from edgebed.methods.parts.local_training import checked_upload
from edgebed.models.learning import blank_x, blank_y, loss_of
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import Augment, LearningTask
from orchestrator import experiment as experiments
from orchestrator.experiment import Experiment
from orchestrator.runs.feasibility import check_methods

NEXT = LearningTask((6,), 7, vocabulary=7, per_token=True)
SEQUENCES = LearningTask((6,), 3, vocabulary=7)
ROWS = LearningTask((5,), 3)
TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def load(spec: dict[str, object], root: Path) -> Split:
    return DATASETS.create(spec, "data").load(root, 1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


# ---- data ----


def test_a_table_of_too_many_columns_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, rows = pd.read_csv, list[int | None]()
    monkeypatch.setattr(pd, "read_csv", lambda path, nrows=None: rows.append(nrows) or read(path, nrows=nrows))
    (tmp_path / "a.csv").write_text(",".join(f"c{i}" for i in range(120_000)) + "\n" + "1," * 119_999 + "1\n")
    with pytest.raises(UsageError, match="120000 columns") as error:
        load({"name": "table", "path": "a.csv", "target": "c1"}, tmp_path)
    assert rows == [0]
    assert len(str(error.value)) < 1000


def test_texts_that_become_too_many_columns_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgebed.datasets.table.MOST_COLUMNS", 50)
    table(tmp_path, kind=[0, 1] * 20, a=[f"t{i}" for i in range(40)], b=[f"t{i}" for i in range(40)])
    with pytest.raises(UsageError, match="80 columns, texts as one for each value"):
        load({"name": "table", "path": "a.csv", "target": "kind"}, tmp_path)


def test_a_table_s_numbers_are_finite_in_32_bits(tmp_path: Path) -> None:
    """Else the first batch of a device made its weights NaN."""
    table(tmp_path, kind=[0, 1] * 10, a=[1e39] + [1.0] * 19)
    with pytest.raises(UsageError, match="beyond 32 bits"):
        load({"name": "table", "path": "a.csv", "target": "kind"}, tmp_path)


def test_a_refusal_names_a_few_columns_only(tmp_path: Path) -> None:
    table(tmp_path, **{f"c{i}": [1] for i in range(5000)})
    with pytest.raises(UsageError, match="no column 'kind'") as error:
        load({"name": "table", "path": "a.csv", "target": "kind"}, tmp_path)
    assert error.value.hint.endswith("c18, c19, …")


def test_a_text_s_answers_are_the_characters_that_follow(text: Path) -> None:
    split = load({"name": "text", "path": "a.txt", "length": 9}, text)
    assert split.task == LearningTask((9,), len(set(TEXT)), len(set(TEXT)), per_token=True)
    read = "".join(split.class_names[int(token)] for token in split.train_x.flatten())
    assert TEXT.startswith(read)
    assert torch.equal(split.train_x.flatten()[1:], split.train_y.flatten()[:-1])
    told = "".join(split.class_names[int(token)] for token in split.test_x.flatten())
    assert told == TEXT[len(read) : len(read) + len(told)]  # the end of the text


def test_a_byte_order_mark_is_no_character(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8-sig")
    assert load({"name": "text", "path": "a.txt", "length": 9}, tmp_path).task.classes == len(set(TEXT))


def test_only_a_file_is_read_as_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="no file of at most"):
        load({"name": "text", "path": "a.txt"}, tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe" * 100])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.txt"):
        load({"name": "text", "path": "a.txt"}, tmp_path)


@pytest.mark.parametrize("name", ["zero", "pipe"])
def test_only_a_file_is_read_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A line of /dev/zero never ends, and fills the memory; a pipe is waited for."""
    read: list[Path] = []
    monkeypatch.setattr(pd, "read_csv", lambda path, **_: read.append(path) or pd.DataFrame({"a": [1]}))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=name):
        load({"name": "table", "path": name, "target": "kind"}, tmp_path)
    assert read == []


def table(folder: Path, **columns: object) -> Path:
    pd.DataFrame(columns).to_csv(folder / "a.csv", index=False)
    return folder


def test_a_table_s_columns_of_texts_become_numbers(tmp_path: Path) -> None:
    kinds = ["cat", "dog", "cat", "dog", "cat"] * 4
    table(tmp_path, size=range(20), colour=["red", "blue"] * 10, kind=kinds)
    split = load({"name": "table", "path": "a.csv", "target": "kind"}, tmp_path)
    assert (split.task, split.class_names) == (LearningTask((3,), 2), ["cat", "dog"])
    assert {tuple(row[1:].tolist()) for row in split.train_x} == {(0.0, 1.0), (1.0, 0.0)}
    for x, y in zip(split.train_x, split.train_y, strict=True):
        assert split.class_names[int(y)] == kinds[int(x[0])]
    assert split.mean[0] == pytest.approx(float(split.train_x[:, 0].mean()))
    tested = [
        set(
            DATASETS.create({"name": "table", "path": "a.csv", "target": "kind"})
            .load(tmp_path, seed)
            .test_x[:, 0]
            .tolist()
        )
        for seed in (1, 1, 2)
    ]
    assert tested[0] == tested[1] != tested[2]  # the seed holds out other rows


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1.0, None, 2.0], "kind": ["a", "b", "a"]}, "1 of 3 rows lack values, .* in x; the first is row 2 "),
        ({"x": [1.0, np.inf, 2.0], "kind": ["a", "b", "a"]}, "1 of 3 rows"),
        ({"x": [1.0, 2.0]}, "has no column 'kind'"),
        ({"kind": ["a", "b"]}, "has no column 'kind' beside others"),
        ({"x": [1.0, 2.0], "the kind": ["a", "b"]}, "did you mean 'the kind'"),
        ({"x": [1.0, 2.0, 3.0], "kind": [0.5, 1.0, 2.0]}, "kind holds numbers with fractions"),
        ({"x": [1.0, 2.0, 3.0], "kind": ["a"] * 3}, "every answer is 'a'"),
        ({"name": [f"n{i}" for i in range(200)], "kind": ["a", "b"] * 100}, "more than 100 different texts"),
    ],
)
def test_tables_that_cannot_be_learned_are_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load({"name": "table", "path": "a.csv", "target": "kind"}, table(tmp_path, **columns))


def test_other_separators_and_encodings_are_named(tmp_path: Path) -> None:
    for data, hint in (
        (b"x;kind\n1;a\n", "separate the columns"),
        ("größe,kind\n1,a\n".encode("latin-1"), "UTF-8"),
    ):
        (tmp_path / "a.csv").write_bytes(data)
        with pytest.raises(UsageError) as caught:
            load({"name": "table", "path": "a.csv", "target": "kind"}, tmp_path)
        assert hint in caught.value.hint


def test_arrays_of_tokens_and_of_rows(tmp_path: Path) -> None:
    tokens = np.arange(60).reshape(10, 6) % 7
    np.savez(tmp_path / "next.npz", x=tokens, y=(tokens + 1) % 7)
    np.savez(tmp_path / "class.npz", x=tokens, y=np.arange(10) % 3)
    np.savez(tmp_path / "rows.npz", x=tokens.astype(np.float64), y=np.arange(10) % 3)
    assert load({"name": "npz", "path": "next.npz", "vocabulary": 7}, tmp_path).task == NEXT
    assert load({"name": "npz", "path": "class.npz", "vocabulary": 7}, tmp_path).task == SEQUENCES
    assert load({"name": "npz", "path": "rows.npz"}, tmp_path).task == LearningTask((6,), 3)
    for x, y, vocabulary in ((tokens, tokens[:, :4], 7), (tokens.astype(np.float64), tokens, 0)):
        np.savez(tmp_path / "odd.npz", x=x, y=y)
        with pytest.raises(UsageError, match=r"odd\.npz: labels of shape"):
            load({"name": "npz", "path": "odd.npz", "vocabulary": vocabulary}, tmp_path)
    with pytest.raises(UsageError, match="tokens of shape"):
        load({"name": "npz", "path": "next.npz", "vocabulary": 6}, tmp_path)


def test_a_shard_of_tokens_is_read_as_it_was_written(tmp_path: Path) -> None:
    x, y = blank_x(NEXT, 5, torch.Generator().manual_seed(1)), blank_y(NEXT, 5)
    write_shard(tmp_path / "a", x, y, (), (), 7, vocabulary=7)
    shard = read_shard(tmp_path / "a")
    assert (shard.task, shard.samples, shard.label_counts) == (NEXT, 5, [5])
    got = torch.cat([batch for batch, _ in shard.batches(2, 1, 0, 3)])
    assert sorted(got.tolist()) == sorted(x.tolist())  # as they are: nothing is normalised


@pytest.mark.parametrize(
    ("x", "y", "about"),
    [
        (torch.full((2, 3), 7), torch.zeros(2).long(), About(3, (), (), 2, vocabulary=7)),
        (torch.full((2, 3), -1), torch.zeros(2).long(), About(3, (), (), 2, vocabulary=7)),
        (torch.zeros(2, 3), torch.zeros(2).long(), About(3, (), (), 2, vocabulary=7)),
        (torch.zeros(2, 3).long(), torch.zeros(2, 2).long(), About(3, (), (), 2, vocabulary=7)),
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), About(3, (0.0,) * 3, (1.0,) * 3, 2)),
        (torch.zeros(2, 3), torch.zeros(2).long(), About(3, (0.0,), (1.0,), 2)),
    ],
)
def test_samples_that_no_agent_could_train_on_are_refused(x: torch.Tensor, y: torch.Tensor, about: About) -> None:
    with pytest.raises(UsageError):
        Shard(x, y, about, "")


# ---- loss and model ----


def test_the_loss_is_that_of_all_tokens() -> None:
    logits, y = torch.randn(2, 6, 7), blank_y(NEXT, 2)
    each = [functional.cross_entropy(logits[:, place], y[:, place]) for place in range(6)]
    assert torch.allclose(loss_of(logits, y), torch.stack(each).mean())


def test_the_model_of_the_next_token_sees_no_later_one() -> None:
    model = seeded(lambda: MODELS.create({"name": "transformer", "blocks": 2}).build(NEXT), 1).eval()
    x = blank_x(NEXT, 1, torch.Generator().manual_seed(2))
    other = x.clone()
    other[0, 4:] = (x[0, 4:] + 1) % 7
    before, after = model(x), model(other)
    assert torch.equal(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, 4], after[0, 4])


def test_accuracy_is_the_share_of_right_tokens() -> None:
    model = seeded(lambda: MODELS.create({"name": "transformer", "blocks": 1}).build(NEXT), 1)
    x = blank_x(NEXT, 3, torch.Generator().manual_seed(2))
    told = model.eval()(x).argmax(-1)
    told[0, :3] = (told[0, :3] + 1) % 7
    assert evaluate(model, model.weights(), x, told, torch.device("cpu")).accuracy == pytest.approx(15 / 18)


def test_sequences_are_evaluated_in_batches_whose_attention_fits_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention keeps 6 x 6 numbers of each sequence, the answers 6 x 7."""
    model = seeded(lambda: MODELS.create({"name": "transformer", "blocks": 1}).build(NEXT), 1)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    x, y = blank_x(NEXT, 5), blank_y(NEXT, 5)
    found = []
    for kept in (4_000_000, 2 * 6 * 7, 1):
        monkeypatch.setattr(evaluation, "TOKENS", kept)
        found.append(evaluate(model, model.weights(), x, y, torch.device("cpu")))
    assert sizes == [5, 2, 2, 1, *[1] * 5]
    assert [each.accuracy for each in found] == [found[0].accuracy] * 3


def test_tasks_have_names_of_their_own() -> None:
    """A reference finds what a model took by its task in words."""
    tasks = [NEXT, msgspec.structs.replace(NEXT, per_token=False), SEQUENCES, ROWS, LearningTask((1, 5, 1), 3)]
    names = ["6 tokens of 7 to 7 each", "6 tokens of 7 to 7", "6 tokens of 7 to 3", "5 to 3", "1x5x1 to 3"]
    assert list(map(str, tasks)) == names


def test_an_upload_without_an_answer_for_each_token_is_refused() -> None:
    features = torch.zeros(2, 6, 16)
    checked_upload({"features": features, "labels": torch.zeros(2, 6).long()}, "a", (6, 16), NEXT)
    for labels in (torch.zeros(2).long(), torch.zeros(2, 5).long(), torch.full((2, 6), 7)):
        with pytest.raises(RunError, match="'a' sent"):
            checked_upload({"features": features, "labels": labels}, "a", (6, 16), NEXT)


# ---- refusals before a fleet starts ----


def experiment(folder: Path, model: str, methods: str, more: str = "") -> Experiment:
    path = folder / "a.yaml"
    path.write_text(f"name: a\nfleet: desk-5\nmodel: {{name: {model}}}\nmethods: {methods}\n{more}", encoding="utf-8")
    return experiments.load(path)


@pytest.mark.parametrize(
    ("task", "model", "methods", "more", "message"),
    [
        (NEXT, "resnet-tiny", "[{name: fedavg}]", "", "takes pictures, not the next token"),
        (ROWS, "transformer", "[{name: fedavg}]", "", "not rows of a table"),
        (NEXT, "transformer", "[{name: fedgkt}]", "", "one answer for a sample"),
        (NEXT, "transformer", "[{name: early-exit}]", "", "one answer for a sample"),
        (ROWS, "fcnn", "[{name: fedavg}]", "training: {augment: {flip: true}}", "changes pictures"),
        (NEXT, "transformer", "[{name: dtfl}]", "privacy: {dcor_alpha: 0.5}", "cannot be hidden"),
    ],
)
def test_what_cannot_learn_it_is_refused(
    tmp_path: Path, task: LearningTask, model: str, methods: str, more: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_methods(experiment(tmp_path, model, methods, more), ["a", "b"], task, tmp_path / "a.yaml")


def test_what_can_learn_it_is_taken(tmp_path: Path) -> None:
    every = "[{name: fedavg}, {name: splitfed}, {name: dtfl}, {name: s2fl}]"
    check_methods(experiment(tmp_path, "transformer", every), ["a", "b"], NEXT, tmp_path / "a.yaml")
    check_methods(experiment(tmp_path, "fcnn", every), ["a", "b"], ROWS, tmp_path / "a.yaml")
    assert Augment() == experiment(tmp_path, "fcnn", every).training.augment
