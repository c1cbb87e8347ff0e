"""Colours: distances for readers with and without colour blindness, and one style per method everywhere."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgebed.methods.base import METHODS as REGISTERED
from orchestrator.records.words import vocabulary
from orchestrator.records.words.palette import COLOURED_AS, DASHES, METHODS, PHASES, RUNS, WAITS, Colour, css, style

TRY = yaml.safe_load((Path(__file__).parents[2] / "profiles" / "experiments" / "try.yaml").read_text("utf-8"))

SIGHTS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
"""On linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""

TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


BESIDE = {
    "dispatch": ("download", "wait_for_others", "idle", "left_out"),
    "download": ("decode", "compute", "request_wait", "unreported"),
    "decode": ("compute", "request_wait"),
    "compute": ("encode", "upload_tail", "wait_for_others", "request_wait", "unreported", "offline", "server"),
    "encode": ("blocked", "upload_tail", "reply_wait", "request_wait"),
    "blocked": ("compute", "upload_tail", "reply_wait", "server_wait"),
    "reply_wait": ("compute", "decode", "server_wait"),
    "upload_tail": ("reply_wait", "server_wait", "wait_for_others", "request_wait", "unreported", "download"),
    "server_wait": ("wait_for_others", "dispatch", "plan", "orchestrator"),
    "request_wait": ("server_wait",),
    "plan": ("merge", "orchestrator"),
    "merge": ("evaluation", "orchestrator", "checkpoint"),
    "evaluation": ("checkpoint", "orchestrator"),
    "checkpoint": ("orchestrator",),
    "working": ("download", "wait_for_others", "left_out", "idle", "dispatch"),
    "wait_for_others": ("plan", "merge", "unreported", "offline"),
    "unreported": ("offline",),
    "offline": ("download", "left_out", "idle"),
    "left_out": ("download", "compute", "upload_tail", "wait_for_others"),
    "idle": ("wait_for_others",),
    "server": ("orchestrator", "server_wait", "dispatch", "download", "upload_tail", "wait_for_others"),
    "orchestrator": ("dispatch", "wait_for_others", "compute", "upload_tail"),
    "probe": ("download", "compute", "wait_for_others", "idle"),
}
"""What may follow on a name in a row of a chart, or stand beside it in a pile."""


def lab(colour: str, sight: str) -> np.ndarray:
    """CIE Lab (D65) of a colour as this sight sees it."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1) / (0.95047, 1, 1.08883)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def delta_e(one: np.ndarray, other: np.ndarray) -> float:
    """CIEDE2000 (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean_c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(dh) / 2)
    c, light = (c1 + c2) / 2, ((l1 + l2) / 2 - 50) ** 2
    h = h1 + h2 if c1 * c2 == 0 else (h1 + h2) / 2 + (180 if abs(h1 - h2) > 180 else 0)
    cosines = [(-0.17, h - 30), (0.24, 2 * h), (0.32, 3 * h + 6), (-0.2, 4 * h - 63)]
    t = 1 + sum(weight * np.cos(np.radians(angle)) for weight, angle in cosines)
    sl, sc, sh = 1 + 0.015 * light / np.sqrt(20 + light), 1 + 0.045 * c, 1 + 0.015 * c * t
    rc = 2 * np.sqrt(c**7 / (c**7 + 25**7))
    rt = -np.sin(np.radians(60 * np.exp(-(((h - 275) / 25) ** 2)))) * rc
    return float(np.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * dc / sc * dh / sh))


def closest(colours: list[Colour], theme: str, sight: str) -> float:
    seen = [lab(getattr(colour, theme), sight) for colour in colours]
    return min(delta_e(one, other) for one, other in combinations(seen, 2))


def test_the_distance_is_that_of_the_published_examples() -> None:
    assert delta_e(np.array([50, 2.6772, -79.7751]), np.array([50, 0, -82.7485])) == pytest.approx(2.0425, abs=1e-4)
    assert delta_e(np.array([60.2574, -34.0099, 36.2677]), np.array([60.4626, -34.1751, 39.4387])) == pytest.approx(
        1.2644, abs=1e-4
    )


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_one_kind_can_be_told_apart(theme: str, sight: str) -> None:
    """Distances of 2 are just seen side by side; 8 is clear in a chart."""
    work = [one for name, one in PHASES.items() if name not in WAITS]
    assert closest(work, theme, sight) >= 8
    assert closest([PHASES[name] for name in WAITS], theme, sight) >= 8
    assert closest([PHASES[phase] for phase in COLOURED_AS.values()], theme, sight) >= 12
    methods = [Colour(one, one) for one in RUNS]
    assert closest(methods[:8], theme, sight) >= 12
    assert closest(methods, theme, sight) >= 8


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_beside_each_other_are_apart_also_in_thin_bars(theme: str, sight: str) -> None:
    assert set(BESIDE) | {name for names in BESIDE.values() for name in names} == set(PHASES)
    pairs = {(one, other): [PHASES[one], PHASES[other]] for one, names in BESIDE.items() for other in names}
    near = {pair: closest(colours, theme, sight) for pair, colours in pairs.items()}
    assert not {pair: distance for pair, distance in near.items() if distance < 12}


@pytest.mark.parametrize(("paper", "least"), [("#ffffff", 2.6), ("#1b2128", 2.6)])
def test_methods_are_seen_on_light_and_on_dark_paper(paper: str, least: float) -> None:
    """Contrast as WCAG 2 has it. The colours are the same on both."""

    def light(colour: str) -> float:
        srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        return float(TO_XYZ[1] @ linear) + 0.05

    contrast = [max(light(one), light(paper)) / min(light(one), light(paper)) for one in RUNS]
    assert min(contrast) >= least


def test_every_method_has_a_style_of_its_own() -> None:
    names = {each["name"] for each in TRY["methods"]}  # and not all that are registered: somebody may have added one
    assert names <= set(REGISTERED.names())
    assert names | {"serve"} == set(METHODS)
    assert len({style(name).colour for name in METHODS}) == len(METHODS) == len(RUNS)
    assert style("a-method-of-mine") == style("a-method-of-mine")


def test_every_name_has_a_colour_and_pages_have_rules_for_all() -> None:
    assert set(PHASES) == set(vocabulary.PHASES)
    text = css()
    for name in PHASES:
        assert text.count(f"--p-{name}: #") == 3, name  # light, dark by the system, dark by choice
        assert f".p-{name} {{" in text
    assert all(f".k-{cause or 'none'} {{" in text for cause in COLOURED_AS)
    assert all(f"path.d{index} {{" in text for index in range(len(DASHES)))
    assert all(f"url(#hatch-{name})" in text for name in WAITS)
