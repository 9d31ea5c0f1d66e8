"""Closing rounds: whatever became of the uploads before them, what can be repaired is taken out of the model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Message

from lightdp.masks import Grid
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained

if TYPE_CHECKING:
    from support.flower_grid import Fault
    from support.flower_tape import Tape

KINDS: tuple[Fault, ...] = ("drop", "lost", "crash", "late")
ROUNDS = 6


def faults(seed: int) -> dict[tuple[int, int], Fault]:
    """In rounds with data alone."""
    rng = random.Random(seed)  # noqa: S311  which faults there are
    share = rng.choice([0.1, 0.2, 0.3])
    places = [(t, i) for t in range(1, ROUNDS + 1) for i in range(5) if rng.random() < share]
    return {place: rng.choice(KINDS) for place in places}


@pytest.mark.parametrize(
    ("grace", "seed"), [*((1, seed) for seed in (6, 7, 17, 22, 30, 38, 62)), *((0, seed) for seed in (7, 17, 30))]
)  # in none of them a repair is given up, after uploads that three times were not used
def test_no_noise_of_stragglers_is_left_whether_or_not_missing_uploads_were_made(
    tape: Tape, grace: int, seed: int
) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = faults(seed)
    trained(grid, planned(grace=grace, gamma=1024.0), num_rounds=ROUNDS, timeout=0.02)
    assert len(tape.used()) < 5 * len(tape.rounds)
    assert np.array_equal(tape.total("fine"), tape.total("data"))


@pytest.mark.parametrize("fault", ["drop", "lost", "crash"])
def test_only_clients_that_may_owe_a_repair_are_asked(tape: Tape, fault: Fault) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(4, 0): "drop", (6, 1): fault}  # the second upload may have carried the repair of the first
    trained(grid, planned(grace=1, gamma=1024.0), num_rounds=ROUNDS, timeout=0.02)
    assert [set(each.used) for each in tape.rounds[ROUNDS:]] == [{1}, {0, 1, 2, 3, 4}]
    assert np.array_equal(tape.total("fine"), tape.total("data"))


@pytest.mark.parametrize("grace", [0, 1])
def test_an_older_upload_in_the_place_of_a_new_one_is_left_out(
    tape: Tape, grace: int, caplog: pytest.LogCaptureFixture
) -> None:
    grid, plan = LocalGrid(an_app(), 5), planned(grace=grace)
    grid.faults = {(2, 0): "lost"}
    reply = grid._reply

    def stale(at: int, message: Message, fault: Any) -> Message | None:
        new = reply(at, message, fault)
        if (grid.round, at, message.metadata.message_type) != (3, 0, "train"):
            return new
        old = [each for i, each in grid.left if i == 0 and each.content.array_records][-2]
        return Message(old.content, reply_to=message)

    grid._reply = stale  # type: ignore[method-assign]
    strategy, result = trained(grid, plan, num_rounds=3, timeout=0.02)
    assert "left out: the upload must be of round 2, got one of round 1" in caplog.text
    others, everyone = {1, 2, 3, 4}, {0, 1, 2, 3, 4}
    assert tape.finals()[:3] == [everyone, others, others]
    assert [set(each) for each in strategy._engine.opened.tables[0].rounds._on_time] == [everyone, others, others]
    row = result.train_metrics_clientapp[3]
    assert (row["lightdp-used"], row["lightdp-joined"], row["lightdp-late"]) == (4, 0, 0)


@pytest.mark.parametrize(("grace", "seed"), [(0, 7), (1, 7), (1, 22), (1, 62)])
def test_no_drawn_noise_is_left_either(tape: Tape, grace: int, seed: int) -> None:
    """Repairs are made of the noise of a round that was bound to what it was bound to."""
    grid = LocalGrid(an_app(), 5)
    grid.faults = faults(seed)
    plan = planned(grace=grace, gamma=8.0, masks="drawn", epsilon=8.0)
    trained(grid, plan, num_rounds=ROUNDS, timeout=0.02)
    unit, pairwise = Grid.of(plan, 40).unit, [each.fine - each.data for each in tape.made]
    assert unit > 1
    assert not any((each % unit).any() for each in pairwise)
    assert any(each.any() for each in pairwise)
    assert len(tape.used()) < 5 * len(tape.rounds)
    assert np.array_equal(tape.total("fine"), tape.total("data"))
