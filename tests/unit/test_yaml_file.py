"""YAML 1.2 as settings files use it: types, lines, duplicate keys, aliases; what is written reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import UsageError
from orchestrator.files.yaml_file import MOST_BYTES, load_yaml, parse, write_yaml

PATH = Path("f.yaml")


def value(text: str) -> Any:
    return parse(text, PATH)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("+7", 7),
        ("True", True),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("off", "off"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("{1: a, true: b}", {"1": "a", "true": "b"}),
        ("{a: &x [1], b: *x}", {"a": [1], "b": [1]}),
    ],
)
def test_plain_words_have_the_types_of_yaml_1_2(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' appears again; it appears first on line 1"),
        ("x:\n  - {a: 1,\n     a: 2}\n", 3, "the key 'a'"),
        ("a: &x\n  - *x\n", 1, "an alias contains itself"),
        ("a: b: c\n", 1, "not YAML"),
        ("a:\n  - [\n", 3, "not YAML"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "is not known"),
        ("a: 1\nb: !!int x\n", 2, "'x' is not a valid int"),
        ("a: 1\nb: 1" + "0" * 5000, 2, "not a valid int"),
        ('a: 1\nb: "\\0"\n', 2, "a control character"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key is not a plain word"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        value(text)
    assert str(caught.value).startswith(f"f.yaml:{line}: ")
    assert why in str(caught.value)
    assert caught.value.hint


def test_a_few_lines_that_stand_for_billions_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(UsageError, match="more than 100,000 values"):
        value("\n".join(lines))
    with pytest.raises(UsageError, match="nested too deeply"):
        value("[" * 5000)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    large, latin = tmp_path / "large.yaml", tmp_path / "latin.yaml"
    large.write_text("a: " + "x" * MOST_BYTES)
    latin.write_bytes(b"a: 1\nb: \xe9\n")
    for path, why in ((large, "1,048,576 bytes"), (latin, ":2: not YAML: not UTF-8"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError) as caught:
            load_yaml(path)
        assert str(path) in str(caught.value)
        assert why in str(caught.value)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["1e3", "1e-3", "off", "yes", "0o17", "1_0", "null", "~", "", "1:30", ".5", "#", "a: b", "- x"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)


@given(st.recursive(PLAIN | WORDS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(WORDS | TEXTS, inner)))
def test_what_is_written_reads_back_the_same(anything: object) -> None:
    text = write_yaml(anything).decode()
    assert value(text) == anything
    assert yaml.safe_load(text) == anything  # and by programs that know YAML 1.1
