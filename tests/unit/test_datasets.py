"""Data sets: what is in the files comes out, subsets are balanced, and what is wrong is named with its hint."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgebed import vision
from edgebed.datasets.base import DATASETS, Split, balanced, hold_out, measure
from edgebed.errors import PluginError, UsageError


def load(root: Path, name: str, seed: int = 0, **options: Any) -> Split:
    return DATASETS.create({"name": name, **options}).load(root, seed)


def consistent(split: Split) -> None:
    """The promises of `Split`."""
    for x, y in ((split.train_x, split.train_y), (split.test_x, split.test_y)):
        assert x.ndim == 4
        assert x.dtype in (torch.uint8, torch.float32)
        assert len(x) == len(y) > 0
        assert y.dtype == torch.int64
        assert 0 <= int(y.min()) <= int(y.max()) < len(split.class_names)
        assert len(split.mean) == len(split.std) == x.shape[1]
    assert min(split.std) > 0


# ---- the base --------------------------------------------------------------------------------------------------------


@given(y=st.lists(st.integers(0, 4), min_size=1, max_size=100), count=st.integers(0, 120), seed=st.integers(0, 99))
def test_a_subset_is_as_balanced_as_the_data_allow(y: list[int], count: int, seed: int) -> None:
    labels = torch.tensor(y)
    rows = balanced(labels, count, seed)
    assert len(rows) == (min(count, len(y)) if count else len(y))
    assert torch.equal(rows, rows.unique())
    have, there = torch.bincount(labels[rows], minlength=5), torch.bincount(labels, minlength=5)
    short = [int(n) for n, total in zip(have, there, strict=True) if n < total]  # classes that are not exhausted
    assert not short or max(have) - min(short) <= 1
    assert torch.equal(rows, balanced(labels, count, seed))


@given(
    groups=st.lists(st.integers(0, 20), min_size=2, max_size=80).filter(lambda g: len(set(g)) > 1),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_groups_stay_together_when_a_part_is_held_out(groups: list[int], share: float, seed: int) -> None:
    g = torch.tensor(groups)
    train, test = hold_out(g, share, seed)
    assert torch.equal(torch.cat((train, test)).sort().values, torch.arange(len(g)))
    assert not set(g[train].tolist()) & set(g[test].tolist())
    assert len(train)
    assert len(test)


def test_measured_mean_and_std_are_those_of_torch() -> None:
    x = torch.randint(0, 256, (2500, 3, 4, 4), dtype=torch.uint8)
    x[:, 2] = 51
    mean, std = measure(x)
    scaled = x.double() / 255
    torch.testing.assert_close(torch.tensor(mean), scaled.mean((0, 2, 3)).float())
    torch.testing.assert_close(torch.tensor(std[:2]), scaled.std((0, 2, 3), correction=0).float()[:2])
    assert (mean[2], std[2]) == (pytest.approx(0.2), 1.0)


def test_the_data_sets_of_the_page_exist_and_refuse_unknown_options() -> None:
    names = {"cifar10", "cifar100", "digits", "fashion-mnist", "image-folder", "jpeg-npz", "mnist", "npz"}
    assert names <= set(DATASETS.names())
    for name, cls in DATASETS.classes().items():
        assert cls.summary
        assert {"train_samples", "test_samples"} <= set(cls.Options.__struct_fields__), name
    with pytest.raises(PluginError, match="sample"):
        DATASETS.create({"name": "digits", "sample": 3})
    with pytest.raises(PluginError):
        DATASETS.create({"name": "digits", "train_samples": -1})
    with pytest.raises(PluginError, match="path"):
        DATASETS.create({"name": "npz"})


# ---- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_all_there_and_the_seed_decides_the_parts(tmp_path: Path) -> None:
    split = load(tmp_path, "digits", seed=1)
    consistent(split)
    assert (len(split.train_y), len(split.test_y)) == (1438, 359)
    assert split.train_x.shape[1:] == (1, 8, 8)
    whole = torch.cat((split.train_x, split.test_x))
    assert split.mean[0] == pytest.approx(whole.mean().item(), abs=1e-3)
    assert split.std[0] == pytest.approx(whole.std().item(), abs=1e-3)
    assert torch.equal(load(tmp_path, "digits", seed=1).test_x, split.test_x)
    assert not torch.equal(load(tmp_path, "digits", seed=2).test_x, split.test_x)


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    theirs, split = load_digits(), load(tmp_path, "digits", seed=1)
    train, test = hold_out(torch.arange(len(theirs.target)), 0.2, 1)
    for part, x, y in ((train, split.train_x, split.train_y), (test, split.test_x, split.test_y)):
        assert torch.equal(x, torch.from_numpy(theirs.images[part].astype(np.float32) / 16.0).unsqueeze(1))
        assert torch.equal(y, torch.from_numpy(theirs.target[part]))


def test_experiments_can_be_shrunk(tmp_path: Path) -> None:
    split = load(tmp_path, "digits", train_samples=50, test_samples=20)
    assert torch.bincount(split.train_y).tolist() == [5] * 10
    assert torch.bincount(split.test_y).tolist() == [2] * 10


def test_a_validation_part_is_held_out_of_the_training_part(tmp_path: Path) -> None:
    """The shares of 45,000, 5,000 and 10,000 of CIFAR-10's 60,000."""
    split = load(tmp_path, "digits", seed=1, test_share=1 / 6, validation=0.1)
    assert split.validation_x is not None
    assert split.validation_y is not None
    assert (len(split.train_y), len(split.validation_y), len(split.test_y)) == (1347, 150, 300)
    assert torch.bincount(split.validation_y).tolist() == [15] * 10
    whole = load(tmp_path, "digits", seed=1, test_share=1 / 6)
    assert whole.validation_x is None
    assert torch.equal(whole.test_x, split.test_x)
    both = torch.cat((split.train_x, split.validation_x)).flatten(1)
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, whole.train_x.flatten(1).tolist()))
    for share in (0.01, 0.99):
        with pytest.raises(UsageError, match="validation"):
            load(tmp_path, "digits", train_samples=20, validation=share)


# ---- npz -------------------------------------------------------------------------------------------------------------


def images(samples: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (samples, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 9), (1, 8, 9)),
        ((3, 8, 9), (3, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),
        ((5, 8, 9), (5, 8, 9)),
        ((1, 8, 3), (1, 8, 3)),
    ],
)
def test_npz_in_any_usual_layout(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x, y = images(12, *shape), np.arange(12).reshape(-1, 1) % 3
    np.savez(tmp_path / "a.npz", x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
    split = load(tmp_path, "npz", path="a.npz")
    consistent(split)
    assert split.train_x.shape == (8, *expected)
    assert split.train_y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    last = split.train_x[7].permute(1, 2, 0).numpy() if shape == (8, 9, 3) else split.train_x[7].numpy().reshape(shape)
    assert np.array_equal(last, x[7])
    assert (split.mean, split.std) == measure(split.train_x)


def test_npz_with_channels_said_to_be_last(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=images(6, 3, 4, 2), y=Y)
    split = load(tmp_path, "npz", path="a.npz", channels="last")
    assert split.train_x.shape[1:] == (2, 3, 4)


def test_npz_without_a_test_part_is_split_by_the_seed(tmp_path: Path) -> None:
    x, y = images(20, 4, 4), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x=x.astype(np.float64), y=y.astype(np.uint8), classes=np.array(["cat", "dog"]))
    split = load(tmp_path, "npz", path="a.npz", test_share=0.25)
    consistent(split)
    assert (len(split.train_y), len(split.test_y), split.class_names) == (15, 5, ["cat", "dog"])
    assert split.train_x.dtype == torch.float32
    seen = torch.cat((split.train_x, split.test_x))[:, 0].numpy()
    assert sorted(map(bytes, seen.astype(np.uint8))) == sorted(map(bytes, x))


X, Y = images(6, 4, 4), np.arange(6) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"holds \['x'\]"),
        ({"a": X}, "none of the arrays"),
        ({"x": X, "y": Y[:5]}, "6 samples in x, 5 labels"),
        ({"x": X[:, 0, 0], "y": Y}, "samples of shape"),
        ({"x": X.astype(str), "y": Y}, "type <U3"),
        ({"x": X, "y": Y.astype(float)}, "float64"),
        ({"x": X, "y": Y - 1}, "labels"),
        ({"x": X, "y": Y.reshape(2, 3)}, "labels"),
        ({"x": np.where(X.max() == X, np.nan, X), "y": Y}, "not finite"),
        ({"x": X, "y": Y, "classes": np.array(["one"])}, "1 names"),
        ({"x": np.array([{}] * 6), "y": Y}, "Object arrays"),
        ({"x_train": X, "y_train": Y, "x_test": images(2, 5, 5), "y_test": Y[:2]}, r"test samples \(1, 5, 5\)"),
    ],
)
def test_npz_that_cannot_be_used_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, "npz", path="a.npz")
    assert "a.npz" in str(caught.value)
    assert caught.value.hint


def test_files_that_are_no_npz_are_refused_and_no_pickle_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "b").write_bytes(pickle.dumps({"x": 1}))
    np.save(tmp_path / "c.npy", X)
    for name in ("a", "b", "c.npy"):
        with pytest.raises(UsageError, match=r"no \.npz file|single array"):
            load(tmp_path, "npz", path=name)
    with pytest.raises(UsageError, match="there is no file") as caught:
        load(tmp_path, "npz", path="none.npz")
    assert "EDGEBED_DATA" in caught.value.hint


# ---- pictures --------------------------------------------------------------------------------------------------------


def paint(path: Path, shade: int, size: int = 6) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), shade, dtype=np.uint8)).save(path)


def shades(x: torch.Tensor) -> list[int]:
    """The one grey value of each picture."""
    assert torch.equal(x, x[:, :1, :1, :1].expand_as(x))
    return x[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(("valid", "train", "test"), [("unused", 4, 2), ("train", 6, 2), ("test", 4, 4)])
def test_the_layout_of_cinic10(tmp_path: Path, valid: str, train: int, test: int) -> None:
    shade = iter(range(10, 250, 10))
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        for name in ("cat", "ant"):
            for i in range(count):
                paint(tmp_path / "cinic" / part / name / f"{i}.png", next(shade), size=9)
    (tmp_path / "cinic" / "train" / "cat" / "Thumbs.db").write_bytes(b"x")
    split = load(tmp_path, "image-folder", path="cinic", size=4, valid=valid)
    consistent(split)
    assert split.class_names == ["ant", "cat"]
    assert (len(split.train_x), len(split.test_x)) == (train, test)
    assert split.train_x.shape[1:] == (3, 4, 4)
    assert shades(split.train_x)[:4] == [30, 40, 10, 20]
    assert split.train_y[:4].tolist() == [0, 0, 1, 1]


def test_the_layout_of_ham10000_keeps_the_pictures_of_a_lesion_together(tmp_path: Path) -> None:
    rows = ["lesion_id,image_id,dx"]
    for lesion in range(10):
        for picture in range(3):
            rows.append(f"L{lesion},I{lesion}{picture},{'nv' if lesion % 2 else 'mel'}")
            paint(tmp_path / "ham" / f"part_{picture}" / f"I{lesion}{picture}.jpg", 10 * lesion + 20)
    (tmp_path / "ham" / "HAM10000_metadata.csv").write_text("\n".join(rows))
    split = load(tmp_path, "image-folder", path="ham", size=6)
    consistent(split)
    assert (len(split.train_y), len(split.test_y), split.class_names) == (24, 6, ["mel", "nv"])
    seen = {round((s - 20) / 10) for s in shades(split.test_x)}
    assert len(seen) == 2
    assert not seen & {round((s - 20) / 10) for s in shades(split.train_x)}
    (tmp_path / "ham" / "part_1" / "I41.jpg").unlink()
    with pytest.raises(UsageError, match=r"1 of 30 pictures .* missing, I41"):
        load(tmp_path, "image-folder", path="ham")


def test_pictures_of_a_single_lesion_cannot_be_split(tmp_path: Path) -> None:
    for name in ("I1.png", "I2.png"):
        paint(tmp_path / name, 5)
    (tmp_path / "m.csv").write_text("lesion_id,image_id,dx\nL,I1,nv\nL,I2,nv\n")
    with pytest.raises(UsageError, match="no test samples"):
        load(tmp_path, "image-folder", path=".")


def test_plain_class_folders_in_grey(tmp_path: Path) -> None:
    for label in "ab":
        for i in range(5):
            paint(tmp_path / label / f"{i}.PNG", 50 + i)
    split = load(tmp_path, "image-folder", path=".", grey=True, size=6)
    consistent(split)
    assert split.train_x.shape == (8, 1, 6, 6)
    assert len(split.test_y) == 2


def test_only_the_pictures_in_use_are_read(tmp_path: Path) -> None:
    for label in "ab":
        for i in range(50):
            paint(tmp_path / "train" / label / f"{i}.png", i)
        paint(tmp_path / "test" / label / "0.png", 1)
    damaged = tmp_path / "train" / "a" / "7.png"
    damaged.write_bytes(b"no picture")
    outcomes = set()
    for seed in range(40):
        try:
            assert len(load(tmp_path, "image-folder", seed=seed, path=".", train_samples=10).train_x) == 10
            outcomes.add("read")
        except UsageError as error:
            outcomes.add(str(error).partition(":")[0])
    assert outcomes == {"read", str(damaged)}


def test_folders_without_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        load(tmp_path, "image-folder", path="none")
    with pytest.raises(UsageError, match="0 class folders"):
        load(tmp_path, "image-folder", path=".")
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(UsageError, match="0 pictures"):
        load(tmp_path, "image-folder", path=".")


def packed(**changes: Any) -> dict[str, Any]:
    files = []
    for shade in (10, 60, 110, 160, 210):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (shade,) * 3).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    arrays = {
        "bytes": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.array([0, 1, 0, 1, 1], np.uint8),
        "n_train": np.array(3),
        "classes": np.array(["x", "y"]),
    }
    return {**arrays, **changes}


def test_packed_jpeg_files_and_their_title(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", **packed())
    split = load(tmp_path, "jpeg-npz", path="p.npz")
    consistent(split)
    assert (shades(split.train_x), shades(split.test_x)) == ([10, 60, 110], [160, 210])
    assert (split.train_y.tolist(), split.test_y.tolist()) == ([0, 1, 0], [1, 1])
    assert DATASETS.create({"name": "jpeg-npz", "path": "p.npz"}).title == "jpeg-npz"
    assert DATASETS.create({"name": "jpeg-npz", "path": "p.npz", "title": "CIFAR-10 (JPEG)"}).title == "CIFAR-10 (JPEG)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": np.array([0, 5])}, "offsets"),
        ({"offsets": np.array([0, 9, 8, 10, 11, 12])}, "offsets"),
        ({"offsets": np.array([0, 1, 2, 3, 4, 10**9])}, "offsets"),
        ({"offsets": np.array([-4, 1, 2, 3, 4, 5])}, "offsets"),
        ({"offsets": np.array([0, 5, 10, 15, 20, 25])}, "no picture"),
        ({"n_train": np.array(5)}, "n_train"),
        ({"n_train": np.array(0)}, "n_train"),
    ],
)
def test_a_damaged_pack_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "p.npz", **packed(**changes))
    with pytest.raises(UsageError, match=message):
        load(tmp_path, "jpeg-npz", path="p.npz")


# ---- torchvision -----------------------------------------------------------------------------------------------------


def test_torchvision_imports_beside_this_torch_and_twice() -> None:
    assert vision.torchvision() is vision.torchvision()
    assert hasattr(vision.torchvision().datasets, "CIFAR10")


SHIM = """
import sys, types, torch
from edgebed import vision
def failing(name):
    if not vision._DECLARED:
        raise RuntimeError("operator torchvision::nms does not exist")
    return types.ModuleType(name)
for imported in (types.ModuleType, failing):
    vision.importlib = types.SimpleNamespace(import_module=imported)
    vision.torchvision()
    print(len(vision._DECLARED), hasattr(torch.ops.torchvision, "nms"))
"""


def test_operators_are_declared_only_where_the_import_fails_for_want_of_them() -> None:
    result = subprocess.run([sys.executable, "-c", SHIM], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines() == ["0 False", "1 True"]


def offline(kind: str) -> Callable[..., Any]:
    def construct(root: str, train: bool, download: bool) -> Any:
        raise OSError("<urlopen error [Errno -2] Name or service not known>")

    return construct


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("mnist", "MNIST", "MNIST/raw/"),
        ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw/"),
        ("cifar10", "CIFAR10", "cifar-10-batches-py/"),
        ("cifar100", "CIFAR100", "cifar-100-python/"),
    ],
)
def test_without_a_network_the_hint_says_where_the_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, place: str
) -> None:
    monkeypatch.setattr(vision.torchvision().datasets, kind, offline(kind))
    with pytest.raises(UsageError, match=f"{kind} is not in {tmp_path} .* Name or service not known") as caught:
        load(tmp_path, name)
    assert place in caught.value.hint
    assert str(tmp_path) in caught.value.hint
    assert "EDGEBED_DATA" in caught.value.hint


@pytest.mark.parametrize(("name", "kind", "classes"), [("cifar10", "CIFAR10", 10), ("cifar100", "CIFAR100", 100)])
def test_the_cifar_family_comes_channels_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, classes: int
) -> None:
    class Fake:
        def __init__(self, root: str, train: bool, download: bool) -> None:
            self.data, self.targets = images(6 if train else 4, 32, 32, 3), [0, 1, 2, 3, 4, 5][: 6 if train else 4]
            self.classes = [str(i) for i in range(classes)]

    monkeypatch.setattr(vision.torchvision().datasets, kind, Fake)
    split = load(tmp_path, name)
    consistent(split)
    assert len(split.class_names) == classes
    assert split.train_x.shape == (6, 3, 32, 32)
    assert np.array_equal(split.train_x[5, :, 3, 4].numpy(), images(6, 32, 32, 3)[5, 3, 4])


# ---- the real thing --------------------------------------------------------------------------------------------------


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Path:
    import os

    return Path(os.environ["EDGEBED_DATA"])


@pytest.mark.data
def test_real_mnist(real: Path) -> None:
    split = load(real, "mnist")
    consistent(split)
    assert (split.train_x.shape, split.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert torch.bincount(split.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    mean, std = measure(split.train_x)
    assert (mean[0], std[0]) == (pytest.approx(split.mean[0], abs=1e-4), pytest.approx(split.std[0], abs=1e-4))


@pytest.mark.data
def test_real_pictures_of_cifar10_as_jpeg(real: Path) -> None:
    """The published mean and std of CIFAR-10 hold for the lossy copy, so its pictures and channels are in order."""
    split = load(real, "jpeg-npz", path="cifar10-jpeg.npz", train_samples=2000, test_samples=500)
    consistent(split)
    assert (split.train_x.shape, split.test_x.shape) == ((2000, 3, 32, 32), (500, 3, 32, 32))
    assert torch.bincount(split.train_y).tolist() == [200] * 10
    assert split.class_names[0] == "airplane"
    assert split.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=0.02)
    assert split.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=0.02)
