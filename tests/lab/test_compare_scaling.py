from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import pytest

from lightdp_lab import compare, scaling
from lightdp_lab.compare import Setting
from lightdp_lab.schemes import SCHEMES, Cost, Player, RoundFailedError, Task, _play
from lightdp_lab.schemes.plain import Plain

TASK = Task(clients=12, colluders=2, stragglers=2, dimension=1500, epsilon=8.0, rounds=40)
SETTING = Setting(TASK, peers=("relayed",), rounds_played=2, link_failure=0.0, seconds=1000.0, cell_seconds=8.0)


class Slow(Plain):
    """Says that it takes a second and so many more for each value, and so many bytes of memory."""

    about = dataclasses.replace(Plain.about, name="slow", title="slow")
    each: ClassVar[float] = 1e-3
    memory: ClassVar[float] = 1.0


class Fragile(Plain):
    """Any client that is missing ends the round."""

    about = dataclasses.replace(Plain.about, name="fragile", title="fragile")

    def round(self, updates: Any, net: Any) -> Any:
        result = super().round(updates, net)
        if len(result.used) < self.task.clients:
            raise RoundFailedError("upload", "somebody is missing")
        return result


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Few sizes, a scheme that is slow without taking time, and which sizes are played."""
    monkeypatch.setattr(scaling, "COUNTS", (6, 24))
    monkeypatch.setattr(scaling, "SIZES", (200, 3000, 50_000))
    monkeypatch.setitem(SCHEMES, "slow", Slow)
    monkeypatch.setitem(SCHEMES, "fragile", Fragile)
    made, honest = [], Player._round

    def cost(player: Player, one: Cost) -> Cost:
        if player.kind is not Slow:
            return one
        seconds = (1 + Slow.each * one.dimension) * (player.task.clients / 12) ** 2
        return dataclasses.replace(one, wall=seconds, server=seconds, memory=Slow.memory * one.dimension)

    def told(player: Player, faults: Any) -> Any:
        made.append((player.kind.about.name, player.task.clients, player.task.dimension))
        one = honest(player, faults)
        return dataclasses.replace(one, cost=cost(player, one.cost))

    monkeypatch.setattr(Player, "_round", told)
    return made


def scaled(*schemes: str, **changed: Any) -> dict[tuple[str, int, int], dict[str, Any]]:
    setting = dataclasses.replace(SETTING, schemes=schemes, **changed)
    record = compare.compare(setting)
    scaling.scale(setting, record)
    json.dumps(record, allow_nan=False)
    return {(one["scheme"], one["clients"], one["dimension"]): one for one in record["scaling"]}


def test_every_cell_of_a_quick_scheme_is_measured_at_its_own_size(played: list[tuple[str, int, int]]) -> None:
    found = scaled("plain")
    sizes = {(12, 200), (12, 1500), (12, 3000), (12, 50_000), (6, 1500), (24, 1500)}
    assert set(found) == {("plain", *size) for size in sizes}
    assert all(one["measured"] and not one["clean"] for one in found.values())
    assert all(found["plain", *size]["up"] == 4 * size[1] for size in sizes)
    assert {("plain", *size) for size in sizes} <= set(played)


def test_a_slow_cell_is_played_once_and_the_settings_own_is_the_row(played: list[tuple[str, int, int]]) -> None:
    setting = dataclasses.replace(SETTING, schemes=("slow",))
    record = compare.compare(setting)
    played.clear()
    scaling.scale(setting, record)
    assert sorted(played) == [("slow", 6, 1500), ("slow", 12, 200), ("slow", 12, 3000), ("slow", 24, 128)]
    own = next(one for one in record["scaling"] if (one["clients"], one["dimension"]) == (12, 1500))
    assert {name: own[name] for name in compare.FIGURES} == {name: record["rows"][0][name] for name in compare.FIGURES}


def test_what_would_take_too_long_lies_on_the_line_through_the_two_sizes_before(
    played: list[tuple[str, int, int]],
) -> None:
    found = scaled("slow")
    assert [found["slow", *at]["measured"] for at in ((12, 200), (12, 1500), (12, 3000), (12, 50_000))] == [
        True,
        True,
        True,
        False,
    ]
    assert found["slow", 12, 50_000]["server"] == pytest.approx(51.0)
    assert ("slow", 12, 50_000) not in played


def test_other_counts_that_would_take_too_long_are_extrapolated_from_short_vectors(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, int, int]]
) -> None:
    monkeypatch.setattr(scaling, "_SHARE", 1)
    found = scaled("slow", cell_seconds=9.0)
    assert found["slow", 6, 1500]["measured"]
    assert not found["slow", 24, 1500]["measured"]  # 10 s
    assert found["slow", 24, 1500]["server"] == pytest.approx(10.0)
    assert ("slow", 24, 1500) not in played
    monkeypatch.setattr(scaling, "_SHARE", 8)  # even 128 values take longer than that
    assert ("slow", 24, 1500) not in scaled("slow", cell_seconds=9.0)


def test_more_time_for_a_cell_measures_more(played: list[tuple[str, int, int]]) -> None:
    found = scaled("slow", cell_seconds=60.0)
    assert all(one["measured"] for one in found.values())
    assert ("slow", 12, 50_000) in played


def test_a_cell_that_would_not_fit_into_memory_is_not_played(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, int, int]]
) -> None:
    monkeypatch.setattr(_play, "_free", lambda: 20_000.0)
    found = scaled("slow", cell_seconds=1e6)
    assert found["slow", 12, 3000]["measured"]
    assert not found["slow", 12, 50_000]["measured"]
    assert ("slow", 12, 50_000) not in played


@pytest.mark.usefixtures("played")
def test_a_row_that_was_extrapolated_is_measured_where_a_cell_has_time_for_it() -> None:
    long = dataclasses.replace(TASK, dimension=6000)
    for seconds in (2.0, 8.0):  # it takes 7
        own = scaled("slow", task=long, seconds=3.0, cell_seconds=seconds)["slow", 12, 6000]
        assert own["measured"] == (seconds == 8.0)
        assert own["server"] == pytest.approx(7.0)


@pytest.mark.usefixtures("played")
def test_a_round_that_fails_is_played_without_faults_and_marked() -> None:
    found = scaled("fragile", link_failure=1.0)
    assert all(one["measured"] for one in found.values())
    assert found["fragile", 6, 1500]["clean"]
    assert found["fragile", 6, 1500]["up"] == 4 * 1500


@pytest.mark.usefixtures("played")
def test_colluders_and_stragglers_keep_their_shares() -> None:
    task = scaling._task(TASK, 24, 77)
    assert (task.clients, task.colluders, task.stragglers, task.dimension) == (24, 4, 4, 77)
    assert (task.epsilon, task.rounds) == (TASK.epsilon, TASK.rounds)


@pytest.mark.usefixtures("played")
def test_a_scheme_that_cannot_be_had_has_no_cells() -> None:
    tight = Task(clients=6, colluders=3, stragglers=3, dimension=50)
    assert scaled("secagg", task=tight) == {}


@pytest.mark.usefixtures("played")
def test_an_interruption_keeps_the_cells_so_far_and_says_so() -> None:
    setting = dataclasses.replace(SETTING, schemes=("plain",))
    record = compare.compare(setting)

    def told(cell: str) -> None:
        if "d = 3,000" in cell:
            raise KeyboardInterrupt

    scaling.scale(setting, record, told)
    assert [one["dimension"] for one in record["scaling"]] == [200, 1500]
    assert record["stopped"]
