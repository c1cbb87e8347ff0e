"""Plug-ins: what is read, imported, offered by packages, refused, and found by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgebed.errors import PluginError
from edgebed.methods.base import HALVES, METHODS
from edgebed.plugin_code import (
    MOST_BYTES,
    classes_of,
    read_installed,
    read_plugin,
    read_plugins,
    sha256_of,
    use,
    write_plugins,
)
from orchestrator.experiment import from_dict, load
from orchestrator.files.plugged import changes, codes_of, given, take_in
from tests.strangers import alone, forget_all, install, write_file, write_folder

__all__ = ["alone"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def experiment(*methods: str, **more: object) -> dict[str, object]:
    return {"name": "e", "fleet": "dtfl-5", "methods": [{"name": name} for name in methods], **more}


def test_a_file_is_used_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    take_in([str(path)])
    assert METHODS.create({"name": "stranger"}).name == "stranger"
    assert "stranger" not in METHODS.built_in()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_has_its_helpers_and_data_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    take_in([str(folder)])
    (code,) = codes_of([str(folder)])
    names = ["__init__.py", "method.py", "shares.py", "smoothing.txt"]
    assert sorted(code.files) == [f"damped/{name}" for name in names]
    assert sys.modules["damped.method"].SMOOTHING == 0.1
    assert HALVES["damped"].__module__ == "damped.method"


def test_the_hash_is_that_of_names_and_bytes_and_of_nothing_else(tmp_path: Path) -> None:
    here, there = write_folder(tmp_path / "here"), write_folder(tmp_path / "there")
    (there / "__pycache__").mkdir()
    (there / "__pycache__" / "method.pyc").write_bytes(b"1")
    (there / ".hidden").write_text("2")
    assert read_plugin(str(here)).sha256 == read_plugin(str(there)).sha256
    (there / "smoothing.txt").write_text("0.2")
    assert read_plugin(str(here)).sha256 != read_plugin(str(there)).sha256
    (there / "smoothing.txt").write_bytes((here / "smoothing.txt").read_bytes())
    assert read_plugin(str(here)).sha256 == read_plugin(str(there)).sha256
    (there / "smoothing.txt").rename(there / "smoothing.txu")
    assert read_plugin(str(here)).sha256 != read_plugin(str(there)).sha256
    split = sha256_of({"a.py": b"ab", "b.py": b"c"}), sha256_of({"a.py": b"a", "b.py": b"bc"})
    assert split[0] != split[1]


def test_another_version_of_a_folder_replaces_its_modules_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    take_in([str(folder)])
    (folder / "smoothing.txt").write_text("0.7")
    take_in([str(folder)])
    assert sys.modules["damped.method"].SMOOTHING == 0.7


def test_one_that_could_not_be_imported_is_imported_once_what_it_needs_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path)
    path.write_text(f"import needed_by_stranger\n{path.read_text()}")
    with pytest.raises(PluginError, match="No module named 'needed_by_stranger'"):
        take_in([str(path)])
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "needed_by_stranger.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    take_in([str(path)])
    assert METHODS.create({"name": "stranger"}).name == "stranger"


def test_a_bare_name_is_that_of_a_package_whatever_stands_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    write_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert given(["damped", "./damped", "stranger_file.py"]) == [
        "damped", str(tmp_path / "damped"), str(tmp_path / "stranger_file.py"),
    ]  # fmt: skip


def test_modules_are_made_of_what_was_read_and_not_of_the_files_or_bytecode_of_later(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    code = read_plugin(str(path))
    stamp = path.stat()
    path.write_text(path.read_text().replace('"stranger"', '"strangex"'))  # of the same size
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    use([code])
    assert [cls.__dict__["name"] for cls in classes_of(code)] == ["stranger"]
    use([read_plugin(str(path))])
    assert "strangex" in METHODS.names()
    assert "stranger" not in METHODS.names()


def test_copies_are_used_as_the_original_and_one_that_was_edited_is_refused(tmp_path: Path) -> None:
    codes = [read_plugin(str(write_folder(tmp_path))), read_plugin(str(write_file(tmp_path)))]
    write_plugins(codes, tmp_path / "copies")
    modes = {oct(each.stat().st_mode & 0o777) for each in (tmp_path / "copies").rglob("*") if each.is_file()}
    assert modes == {"0o644"}, "agents are other users"
    copies = read_plugins(tmp_path / "copies")
    assert [(each.told, each.files) for each in copies] == [(each.told, each.files) for each in codes]
    assert not changes(copies)
    (tmp_path / "damped" / "smoothing.txt").write_text("0.3")
    (line,) = changes(copies)
    assert str(tmp_path / "damped") in line
    assert "its own copy" in line
    (tmp_path / "copies" / "damped" / "smoothing.txt").write_text("0.3")
    with pytest.raises(PluginError, match="a run's copy of"):
        read_plugins(tmp_path / "copies")


def test_an_installed_package_offers_its_method_by_name(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="no method 'damped'"):
        METHODS.create({"name": "damped"})
    monkeypatch.syspath_prepend(str(site))
    assert "damped" not in METHODS.names(), "it is imported before anybody uses it"
    with pytest.raises(PluginError) as error:
        METHODS.create({"name": "dampd"})
    assert "did you mean 'damped'?" in str(error.value)
    assert METHODS.create({"name": "damped"}).name == "damped"
    assert from_dict(experiment("damped")).plugins == ["damped"], "a run must know which code it uses"
    assert from_dict(experiment("fedavg")).plugins == []


def test_an_installed_package_is_the_same_plug_in_as_its_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    installed, folder = read_installed("damped"), read_plugin(str(write_folder(tmp_path)))
    assert installed.sha256 == folder.sha256
    assert installed.told.modules == ("damped", "damped.method")
    assert installed.told.requirements == ("numpy",)
    assert read_plugin("damped").told == installed.told


def test_an_experiment_names_plug_ins_beside_it_and_a_caller_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "e")
    write_file(tmp_path / "elsewhere")
    path = tmp_path / "e" / "experiment.yaml"
    path.write_text("{name: e, fleet: dtfl-5, plugins: [damped], methods: [{name: damped}, {name: stranger}]}")
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load(path, plugins=["stranger_file.py"])
    assert loaded.plugins == ["damped", str(tmp_path / "elsewhere" / "stranger_file.py")]
    assert [code.name for code in codes_of(loaded.plugins)] == ["damped", "stranger_file"]


def test_requirements_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "requirements.txt").write_text(
        "# more\neinops  # for views\n\nedgebed\n-r other.txt\ntorchvision; extra == 'pictures'\n"
    )
    assert read_plugin(str(folder)).told.requirements == ("einops",)


BROKEN = {
    "import nowhere_to_be_found": ("No module named 'nowhere_to_be_found', in line 1 of ", "pip install"),
    "x = 1\n1 / 0": ("ZeroDivisionError: division by zero, in line 2 of ", "mend it"),
    "def f():\n    return 1 / 0\n\nf()": ("ZeroDivisionError: division by zero, in line 2 of ", "mend it"),
    "def": ("SyntaxError", "mend it"),
    "x = 1": ("has no method, model or data set", "derive a class"),
    "from edgebed.methods.fedavg import FedAvg\nclass Mine(FedAvg): name = 'fedavg'": (
        "two methods are called",
        "name",
    ),
    "from edgebed.methods.base import device_half\ndevice_half('output', head=False)(lambda *_: None)": (
        "two device halves are called 'output'",
        "objective",
    ),
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_cannot_be_used_is_refused_with_the_line_and_the_cure(text: str, tmp_path: Path) -> None:
    path, (what, cure) = tmp_path / "broken.py", BROKEN[text]
    path.write_text(text)
    with pytest.raises(PluginError) as error:
        from_dict(experiment("fedavg"), plugins=[str(path)])
    assert what in f"{error.value}"
    assert cure in f"{error.value} {error.value.hint}"
    forget_all()
    assert from_dict(experiment("fedavg")).plugins == []


def test_what_is_no_plug_in_or_takes_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for what, why in (
        ("nothing.py", "there is no plug-in"),
        (str(tmp_path / "project"), r"has no __init__\.py"),
        (str(write_file(tmp_path, "my-method")), "no name of a Python module"),
        (str(write_file(tmp_path, "random")), "may not be called 'random'"),
        (str(write_file(tmp_path, "msgspec")), "may not be called 'msgspec'"),
        (str(write_file(tmp_path, "orchestrator")), "may not be called 'orchestrator'"),
        ("edgebed", "may not be called 'edgebed'"),
    ):
        with pytest.raises(PluginError, match=why):
            take_in([what])
    twins = [str(write_file(tmp_path / side, "twin")) for side in ("left", "right")]
    with pytest.raises(PluginError, match="two plug-ins are called 'twin'"):
        take_in(twins)


def test_one_that_is_too_large_for_every_device_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    with (folder / "data.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(PluginError, match="more than 64 MiB"):
        read_plugin(str(folder))
