"""Closing rounds: whatever became of the uploads before them, what can be repaired is taken out of the model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained

if TYPE_CHECKING:
    from support.flower_grid import Fault
    from support.flower_tape import Tape

KINDS: tuple[Fault, ...] = ("drop", "lost", "crash", "late")
ROUNDS = 6


def faults(seed: int) -> dict[tuple[int, int], Fault]:
    """In rounds with data alone."""
    rng = random.Random(seed)
    share = rng.choice([0.1, 0.2, 0.3])
    places = [(t, i) for t in range(1, ROUNDS + 1) for i in range(5) if rng.random() < share]
    return {place: rng.choice(KINDS) for place in places}


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("seed", range(70))
def test_no_noise_of_stragglers_is_left_whether_or_not_missing_uploads_were_made(
    tape: Tape, seed: int, grace: int
) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = faults(seed)
    trained(grid, planned(grace=grace, gamma=1024.0), num_rounds=ROUNDS, timeout=0.02)
    assert np.array_equal(tape.total("fine"), tape.total("data"))
