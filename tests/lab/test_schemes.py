from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.errors import ArgumentError
from lightdp_lab.schemes import SCHEMES, Faults, Grid, Links, Net, RoundFailedError, Scheme, Task
from lightdp_lab.schemes._scheme import noisy, step_of
from lightdp_lab.schemes.paillier import Paillier

if TYPE_CHECKING:
    from collections.abc import Callable

FRAGILE = {"pairwise"}  # whoever is lost takes the round along
QUICK: dict[str, Callable[[Task], Scheme]] = {"paillier": lambda task: Paillier(task, bits=256)}  # 2048 elsewhere
TASK = Task(clients=8, colluders=2, stragglers=2, dimension=3000, epsilon=8.0, rounds=5)


def updates(task: Task, seed: int = 0) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Vectors of the clip's length."""
    drawn = np.random.default_rng(seed).normal(size=(task.clients, task.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * task.clip).astype(np.float32))


def ready(name: str, task: Task = TASK) -> Scheme:
    scheme = QUICK.get(name, SCHEMES[name])(task)
    scheme.set_up(Net(task.clients))
    return scheme


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("lost", [frozenset(), frozenset({1, 6})])
def test_the_sum_is_that_of_the_used_updates_up_to_the_named_noise(name: str, lost: frozenset[int]) -> None:
    scheme, given = ready(name), updates(TASK)
    net = Net(TASK.clients, faults=Faults(lost={0: lost}))
    if lost and name in FRAGILE:
        with pytest.raises(RoundFailedError) as failure:
            scheme.round(given, net)
        assert failure.value.stage in {stage.name for stage in net.stages}
        return
    result = scheme.round(given, net)
    assert result.used == frozenset(range(TASK.clients)) - lost
    error = result.total - np.sum([given[i] for i in result.used], axis=0)
    expected = scheme.noise(len(result.used))
    if expected == 0:
        assert np.abs(error).max() < 1e-6
        return
    spread = 6 * np.sqrt(2 / TASK.dimension)
    assert error.var() == pytest.approx(expected, rel=spread)
    assert error.var() != pytest.approx(1.5 * expected, rel=spread)


@pytest.mark.parametrize("name", SCHEMES)
def test_no_scheme_gives_a_sum_when_nobody_is_there(name: str) -> None:
    scheme = ready(name)
    with pytest.raises(RoundFailedError):
        scheme.round(updates(TASK), Net(TASK.clients, faults=Faults(down=frozenset(range(TASK.clients)))))


@pytest.mark.parametrize("name", SCHEMES)
def test_two_rounds_in_a_row_come_off(name: str) -> None:
    scheme = ready(name)
    for seed in range(2):
        assert len(scheme.round(updates(TASK, seed), Net(TASK.clients)).used) == TASK.clients


def test_what_is_lost_counts_for_the_sender_and_does_not_arrive() -> None:
    net = Net(3, faults=Faults(down=frozenset({1}), lost={1: frozenset({2})}))
    net.stage("first")
    assert net.up(0, b"abc") == b"abc"
    assert net.up(1, b"abc") is None
    assert net.down(1, b"abcd") is None
    assert net.between(0, 2, b"ab") == b"ab"
    net.stage("second")
    assert net.up(2, b"abc") is None
    assert net.between(0, 2, b"ab") is None
    assert (net.stages[0].up, net.stages[0].down) == ({0: 5, 1: 3}, {2: 2})
    assert (net.stages[1].up, net.stages[1].down) == ({0: 2}, {})
    assert net.total("up") == 10 / 3


def test_direct_links_bypass_the_server_and_fail_by_themselves() -> None:
    net = Net(3, Links(peers="direct"), Faults(down=frozenset({0}), cut=frozenset({(1, 2)})))
    net.stage("shares")
    assert net.between(0, 1, b"abc") == b"abc"
    assert net.between(2, 1, b"abc") is None
    assert net.between(1, 2, b"abc") is None
    assert net.stages[0].peer == {0: 3, 1: 3, 2: 3}
    assert net.total("up") == 0


def test_faults_are_drawn_at_their_rates() -> None:
    rng = np.random.default_rng(0)
    links = Links(peers="direct", failure=0.1)
    drawn = [Faults.drawn(links, 20, rng) for _ in range(400)]
    assert np.mean([len(f.down) for f in drawn]) == pytest.approx(2, abs=0.25)
    assert np.mean([len(f.cut) for f in drawn]) == pytest.approx(19, abs=1)
    assert not any(f.lost for f in drawn)
    assert not Faults.drawn(Links(failure=0.1), 20, rng).cut


def test_modelled_time_is_work_wires_and_latency_stage_by_stage() -> None:
    net = Net(2, Links(uplink=8e3, downlink=16e3, latency=0.5))
    net.stage("first")
    net.down(0, bytes(1000))
    net.up(0, bytes(1000))
    net.up(1, bytes(500))
    net.stage("second")
    net.up(1, bytes(500))
    assert net.modelled_seconds() == pytest.approx((0.5 + 0.5 + 0.5 + 1.0) + (0.5 + 0.5))


@pytest.mark.parametrize("sigma", [3.0, 16.0, 2048.0])
def test_noise_of_clients_has_its_scale_and_is_never_the_same(sigma: float) -> None:
    values = np.full(100_000, 7.25 * 0.01)
    noise = noisy(values, 0.01, sigma) - 7.25
    assert noise.var() == pytest.approx(sigma**2 + 2 / 12, rel=0.02)
    assert abs(noise.mean()) < 0.02 * sigma
    assert not np.array_equal(noise, noisy(values, 0.01, sigma) - 7.25)


def test_noise_of_clients_is_so_fine_that_what_moves_less_than_a_step_hardly_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise in multiples of 1/128 of a step would move one value in 128, whatever the difference: a larger clip."""
    monkeypatch.setattr("lightdp_lab.schemes._scheme.os.urandom", lambda size: bytes(range(size)))
    zeros = np.zeros(1_000_000, np.float32)
    moved = np.count_nonzero(noisy(zeros, 1.0, 16.0) != noisy(zeros + np.float32(1e-3), 1.0, 16.0))
    assert 900 < moved < 1100


def test_noise_covers_its_own_finest_grid() -> None:
    """(W1): as many of its σ as the plan's for a clip make up a clip and √d of its finest steps."""
    task = Task(clients=8, colluders=1, stragglers=1, dimension=10**9)
    step = step_of(task, 0.7, 16)
    assert 16 * step / (task.clip + math.sqrt(task.dimension) * 2**-22 * step) == pytest.approx(
        0.7 / task.clip, rel=1e-12
    )
    assert 16 * step > 0.7 * 1.0003


@pytest.mark.parametrize("name", ["central", "local"])
def test_noise_of_schemes_without_a_grid_of_their_own_is_made_so_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = dataclasses.replace(TASK, dimension=20_000)
    monkeypatch.setattr("lightdp_lab.schemes.plain.step_of", lambda _, sigma, steps: 1.5 * sigma / steps)
    scheme: Any = SCHEMES[name](task)
    made = scheme._released(np.zeros(20_000)) if name == "central" else scheme._leaving(np.zeros(20_000, np.float32))
    assert made.var() == pytest.approx(1.5**2 * scheme.noise(1), rel=0.06)
    monkeypatch.setattr("lightdp_lab.schemes.plain.noisy", lambda values, *_: np.zeros(len(values), np.int32))
    again = scheme._released(np.zeros(9)) if name == "central" else scheme._leaving(np.zeros(9, np.float32))
    assert not again.any()  # all of it came from there


def test_a_grid_holds_the_sum_of_everybody_and_its_noise() -> None:
    grid = Grid.of(TASK, 0.7)
    values = [grid.encode(update) for update in updates(TASK)]
    assert np.allclose(grid.decode(np.sum(values, axis=0)), np.sum(values, axis=0) * grid.step)
    ones = np.zeros(4, np.float32)
    ones[0] = TASK.clip
    quiet = Grid(grid.step, grid.bits, 0.0)
    assert grid.decode(8 * quiet.encode(ones))[0] == pytest.approx(8 * TASK.clip, abs=8 * grid.step)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Links(peers="somehow"), "peers must be one of relayed, direct"),  # type: ignore[arg-type]
        (lambda: Links(failure=1.5), "failure must be in"),
        (lambda: Links(uplink=0), "uplink must be > 0"),
        (lambda: Task(clients=8, colluders=8, stragglers=0, dimension=5), "colluders must be in"),
        (lambda: Task(clients=8, colluders=1, stragglers=0, dimension=0), "dimension must be"),
    ],
)
def test_bad_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]
