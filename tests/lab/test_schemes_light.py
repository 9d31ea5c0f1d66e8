from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.noise_graph import Graph
from lightdp_lab.schemes import Faults, Links, Player, Task, light
from lightdp_lab.schemes._net import Net
from lightdp_lab.schemes.light import Exact, ExactSparse, Repair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightdp.planning import Plan

TASK = Task(clients=24, colluders=3, stragglers=4, dimension=20_000, epsilon=8.0, rounds=10)


def left(graph: Graph, absent: frozenset[int]) -> int:
    """Pairs of which exactly one is absent."""
    present = np.array([i not in absent for i in range(graph.clients)])
    return int(graph.adjacency()[np.ix_(present, ~present)].sum())


@pytest.mark.parametrize(
    ("clients", "colluders", "stragglers", "degree"),
    [
        (50, 10, 10, 24),  # half of the others
        (51, 10, 10, 26),  # which is rounded up to an even number
        (20, 4, 4, 10),
        (50, 20, 9, 30),  # C̄ + S̄ + 1
        (50, 20, 10, 32),
        (10, 2, 2, 6),
        (8, 3, 4, 7),  # all others: there are no more
    ],
)
def test_sparse_has_the_least_even_degree_that_is_half_and_above_colluders_and_stragglers(
    clients: int, colluders: int, stragglers: int, degree: int
) -> None:
    scheme = ExactSparse(Task(clients, colluders, stragglers, dimension=10))
    assert scheme.degree == scheme.plan.graph.degree == degree


def test_sparse_with_all_peers_is_exact() -> None:
    task = Task(clients=8, colluders=3, stragglers=4, dimension=10)
    assert ExactSparse(task).plan == Exact(task).plan


def test_sparse_keeps_the_same_epsilon_with_more_noise_than_all_peers_and_less_than_none() -> None:
    sparse, whole = ExactSparse(TASK).plan, Exact(TASK).plan
    assert sparse.epsilon() == pytest.approx(8.0)
    assert sparse.epsilon() <= 8.0
    assert sparse.sigma_effective == pytest.approx(whole.sigma_effective)
    assert whole.noise_in_mean() < sparse.noise_in_mean() < TASK.plan("local").noise_in_mean()


def test_noise_is_the_mean_over_all_sets_of_absent_clients() -> None:
    task = Task(clients=9, colluders=0, stragglers=2, dimension=10)
    scheme = ExactSparse(task)
    graph, pair = scheme.plan.graph, scheme.plan.sigma_pairwise**2
    assert graph.degree == 4
    for absent in (0, 1, 2):
        own = scheme.noise(9) * (9 - absent) / 9
        cut = [left(graph, frozenset(chosen)) for chosen in itertools.combinations(range(9), absent)]
        assert scheme.noise(9 - absent) == pytest.approx(own + np.mean(cut) * pair)


def expected(plan: Plan, graph: Graph, absent: frozenset[int]) -> float:
    """Variance in the sum, counted wire by wire."""
    own = (plan.clients - len(absent)) * (plan.sigma_individual**2 + plan.wire_grid**2 / 12)
    return own + left(graph, absent) * plan.sigma_pairwise**2


@pytest.mark.parametrize("absent", [frozenset({3}), frozenset({0, 7, 8, 21})])
def test_measured_noise_of_sparse_is_that_of_its_wires_and_of_no_other_degree(absent: frozenset[int]) -> None:
    player = Player(ExactSparse, TASK, Links())
    plan = ExactSparse(TASK).plan
    played = player.round(Faults(down=absent))
    assert played.error is not None
    spread = 5 * np.sqrt(2 / TASK.dimension)
    assert plan.graph.degree == 12
    assert played.error.var() == pytest.approx(expected(plan, plan.graph, absent), rel=spread)
    for degree in (6, 23):
        wrong = expected(plan, Graph(24, degree), absent)
        assert played.error.var() != pytest.approx(wrong, rel=spread), degree


@pytest.mark.parametrize("masks", ["drawn", "gaussian"])
def test_who_was_away_is_told_what_it_missed_and_used_again(masks: Any) -> None:
    player = Player(Repair, dataclasses.replace(TASK, masks=masks, dimension=100), Links())
    for gone in (frozenset({3}), frozenset({3, 5}), frozenset({7}), frozenset[int]()):
        played = player.round(Faults(down=gone))
        assert played.result is not None
        assert played.result.used == frozenset(range(24)) - gone
    player.round()
    heard = [player.round().net.total("down") for _ in range(3)]
    assert len(set(heard)) == 1  # who was there is told of one round


@pytest.mark.parametrize(("masks", "hashed"), [("drawn", 24 - 3), ("gaussian", 0)])
def test_each_client_hashes_a_model_within_its_work_where_masks_are_drawn(
    masks: Any, hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = dataclasses.replace(TASK, masks=masks, dimension=3000)
    player, sizes = Player(Repair, task, Links()), []
    working: list[bool] = [False]
    real_client, real_digest = Net.client, lightdp.digest

    @contextlib.contextmanager
    def client(net: Net, i: int) -> Iterator[None]:
        working[0] = True
        with real_client(net, i):
            yield
        working[0] = False

    def digest(*parts: Any) -> bytes:
        if working[0]:
            sizes.append(parts[0].nbytes)
        return real_digest(*parts)

    monkeypatch.setattr(Net, "client", client)
    monkeypatch.setattr(light, "digest", digest)
    played = player.round(Faults(down=frozenset({3, 5, 6})))
    assert played.failure is None
    assert sizes == [4 * 3000] * hashed
