from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lightdp.client_set import ClientSet
from lightdp.stream import accumulate
from lightdp_lab.schemes import SCHEMES, Faults, Links, Net, RoundFailedError, Task, dordis
from lightdp_lab.schemes._shamir import SIZE
from lightdp_lab.schemes.dordis import Dordis, LayeredClient

TASK = Task(clients=10, colluders=2, stragglers=3, dimension=20_000, epsilon=8.0, rounds=5)
LOST = [3, 8, 0]


def updates() -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    drawn = np.random.default_rng(4).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * TASK.clip).astype(np.float32))


def error(net: Net) -> tuple[int, float]:
    """Survivors of a round, and the variance of what is in their sum beside their updates."""
    result = Dordis(TASK).round(updates(), net)
    return len(result.used), float((result.total - np.sum([updates()[i] for i in result.used], axis=0)).var())


def close(variance: float, expected: float) -> bool:
    return variance == pytest.approx(expected, rel=6 * np.sqrt(2 / TASK.dimension))


def target() -> float:
    return SCHEMES["central"](TASK).noise(1)


@pytest.mark.parametrize("gone", range(4))
def test_layers_that_stay_leave_the_honest_survivors_exactly_the_target(gone: int) -> None:
    scheme = Dordis(TASK)
    each = sum(sigma**2 for sigma in scheme.sigmas[: gone + 1]) * scheme.grid.step**2
    assert each * (TASK.clients - TASK.colluders - gone) == pytest.approx(target(), rel=1e-4)


def test_layers_are_those_of_the_paper() -> None:
    honest = TASK.clients - TASK.colluders
    wanted = [Fraction(1, honest), *(Fraction(1, (honest - k) * (honest - k + 1)) for k in range(1, 4))]
    scheme = Dordis(TASK)
    assert [(sigma * scheme.grid.step) ** 2 / target() for sigma in scheme.sigmas] == pytest.approx(
        [float(part) for part in wanted], rel=1e-4
    )


@pytest.mark.parametrize("peers", ["relayed", "direct"])
@pytest.mark.parametrize("gone", range(4))
def test_however_many_are_lost_the_noise_is_exact(gone: int, peers: str) -> None:
    links = Links(peers=peers)  # type: ignore[arg-type]
    net = Net(TASK.clients, links, Faults(lost={gone % 3: frozenset(LOST[:gone])}))
    used, variance = error(net)
    assert used == TASK.clients - gone
    assert close(variance, Dordis(TASK).noise(used))
    assert close(variance, used * target() / (used - TASK.colluders))
    assert gone == 3 or not close(variance, SCHEMES["secagg"](TASK).noise(used))
    assert net.trips == 4


@pytest.mark.parametrize("gone", range(4))
def test_layers_that_are_taken_out_leave_nothing(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the first layer, and with the others on so fine a grid that rounding an upload is all the rest."""

    def layers(values: Any, step: float, _: float, terms: Any) -> Any:
        out = np.rint(values / np.float64(step)).astype(np.int32)
        accumulate(out, terms)
        return out

    monkeypatch.setattr(dordis, "noisy", layers)
    scheme = Dordis(TASK)
    used, variance = error(Net(TASK.clients, Links(), Faults(lost={0: frozenset(LOST[:gone])})))
    kept = sum(sigma**2 for sigma in scheme.sigmas[1 : gone + 1])
    assert close(variance, used * (kept + 1 / 12) * scheme.grid.step**2)


def test_with_all_stragglers_lost_it_is_the_noise_of_secagg() -> None:
    assert Dordis(TASK).noise(7) == pytest.approx(
        SCHEMES["secagg"](TASK).noise(7), rel=1e-3
    )  # whose noise is rounded too


def test_seeds_of_those_who_upload_and_vanish_come_from_shares() -> None:
    net = Net(TASK.clients, faults=Faults(lost={2: frozenset({1}), 3: frozenset({4, 5})}))
    used, variance = error(net)
    assert used == TASK.clients - 1
    assert close(variance, Dordis(TASK).noise(used))
    assert [stage.name for stage in net.stages] == ["advertise", "share", "upload", "unmask", "seeds"]


def test_with_nothing_to_take_out_nobody_asks_for_seeds() -> None:
    net = Net(TASK.clients, faults=Faults(lost={2: frozenset(LOST)}))
    assert error(net)[0] == 7
    assert net.trips == 4


def test_too_few_shares_of_seeds_end_the_round() -> None:
    spare = TASK.clients - Dordis(TASK).threshold
    lost = {3: frozenset({0}), 4: frozenset(range(1, spare + 1))}
    with pytest.raises(RoundFailedError) as failure:
        error(Net(TASK.clients, faults=Faults(lost=lost)))
    assert failure.value.stage == "seeds"
    lost[4] = frozenset(range(1, spare))
    assert error(Net(TASK.clients, faults=Faults(lost=lost)))[0] == TASK.clients


def test_one_past_the_bound_ends_the_round() -> None:
    with pytest.raises(RoundFailedError, match="6 clients, 7 needed") as failure:
        error(Net(TASK.clients, faults=Faults(lost={2: frozenset({1, 2, 3, 4})})))
    assert failure.value.stage == "upload"


def test_a_client_reveals_seeds_of_excess_layers_only() -> None:
    scheme = Dordis(TASK)
    clients = [LayeredClient(i, scheme) for i in range(TASK.clients)]
    keys = {i: i.to_bytes(4, "little") + client.advertise() for i, client in enumerate(clients)}
    sealed = [c.share(b"".join(key for j, key in keys.items() if j != i)) for i, c in enumerate(clients)]
    clients[0].upload([(j, sealed[j][0]) for j in range(1, TASK.clients)], updates()[0])
    answer = clients[0].unmask(ClientSet(np.arange(TASK.clients) != 5).to_bytes())
    layers = clients[0]._secrets[2:]
    assert answer.endswith(b"".join(layers[1:]))
    assert len(answer) == SIZE * TASK.clients + 32 * 2
    assert layers[0] not in answer
