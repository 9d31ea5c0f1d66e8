"""Colours that are drawn together can be told apart, also without red or green."""

from __future__ import annotations

import numpy as np
import pytest

from lightdp.report import TONES
from lightdp.schemes import BUILT_IN
from lightdp_lab.registry import ALL
from support.colours import difference, lab, nearest


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [  # of the test data that Sharma, Wu and Dalal published with the formula
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, -1.0, 2.0), (50.0, 0.0, 0.0), 2.3669),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
    ],
)
def test_the_difference_of_colours_is_the_published_one(
    one: tuple[float, ...], other: tuple[float, ...], expected: float
) -> None:
    assert difference(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


def test_red_and_green_of_one_lightness_are_alike_without_green() -> None:
    pair = ("#d62728", "#728400")
    assert difference(*(lab(each) for each in pair)) > 30
    assert nearest(pair) < 12


def test_schemes_that_are_planned_together_differ_to_everybody() -> None:
    assert nearest(scheme.colour for scheme in BUILT_IN.values()) > 18


def test_all_schemes_differ_beside_their_names() -> None:
    assert nearest(scheme.colour for scheme in ALL.values()) > 9


def test_tones_of_other_charts_differ_to_everybody() -> None:
    assert nearest(TONES.values()) > 18
