"""Panels and figures of runs whose rosters change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lightdp.report._figures import facts, run_tables
from lightdp.report._members import member_panels
from lightdp.report._panels import panels
from support.run_logs import logged, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.runlog import RunLog

__all__ = ["make"]


def changing(*, grace: bool = False) -> list[dict[str, Any]]:
    """Ten clients in two rosters of five; the first loses two and is closed, and a third is formed."""
    lines = logged(rounds=4, epsilon_clients=[0.1 * i for i in range(10)], closed=[{"roster": 1}, {"roster": 2}])
    usual: dict[str, Any] = {"formed": [], "closed": [], "away_clients": [], "waiting_clients": [], "spent_clients": []}
    where: list[dict[str, Any]] = [
        {"roster": 0, "formed": [{"roster": 0, "members": [0, 2, 4, 6, 8]}, {"roster": 1, "members": [1, 3, 5, 7, 9]}]},
        {"roster": 1, "away_clients": [0, 1], "lost": 1, "lost_clients": [1]},
        {
            "roster": 1,
            "away_clients": [0, 2],
            "closed": [{"roster": 0}],
            "waiting_clients": [4, 6],
            "spent_clients": [8],
        },
        {"roster": 2, "away_clients": [0], "formed": [{"roster": 2, "members": [2, 4, 6]}], "spent_clients": [0, 8]},
    ]
    for line, more in zip(lines[1:-1], where, strict=True):
        line.update(usual | {"used": 5, "late": 1, "late_clients": [0], "lost": 0, "lost_clients": []} | more)
    if grace:
        for line, joined in zip(lines[1:-1], ([], [], [5], []), strict=True):
            line.update({"joined": len(joined), "joined_clients": joined})
        lines[3]["closed"][0]["joined_clients"] = [2, 4]
        lines[-1]["closed"][1]["joined_clients"] = [6]
    return lines


def test_every_client_is_somewhere_in_every_round(make: Callable[..., RunLog]) -> None:
    log = make(lines=changing())
    assert log.federated
    assert (log.population, len(log.rosters)) == (10, 3)
    names = ("playing", "seated", "waiting", "away", "spent")
    found = [tuple(each[name] for name in names) for each in log.whereabouts(log.rounds)]
    assert found == [(5, 5, 0, 0, 0), (4, 4, 0, 2, 0), (5, 0, 2, 2, 1), (3, 5, 0, 0, 2)]
    assert not make("exact").federated


def test_who_sent_in_a_round_was_in_its_roster_also_if_that_used_up_its_budget_or_closed_the_roster(
    make: Callable[..., RunLog],
) -> None:
    lines = changing()
    lines[2] |= {"spent_clients": [1, 3, 5], "waiting_clients": [7]}  # 1 was away, the others sent
    lines[4] |= {"spent_clients": [2, 4, 6, 8], "waiting_clients": [], "away_clients": [0]}
    names = ("playing", "seated", "waiting", "away", "spent")
    other = make(lines=lines)
    found = [tuple(each[name] for name in names) for each in other.whereabouts(other.rounds)]
    assert found[1] == (4, 4, 0, 1, 1)
    assert found[3] == (3, 5, 0, 1, 1)


def test_clients_are_counted_by_whole_numbers(make: Callable[..., RunLog]) -> None:
    log = make(lines=changing())
    (panel,) = [each for each in member_panels(log, "run", [log]) if each.title.startswith("Privacy spent")]
    axis = panel.chart.to_dict()["layer"][0]["encoding"]["x"]["axis"]
    assert (axis["tickMinStep"], axis["format"]) == (1, ",d")


def test_late_uploads_are_found_in_the_next_line_of_their_roster_or_where_it_is_closed(
    make: Callable[..., RunLog],
) -> None:
    log = make(lines=changing(grace=True))
    assert [log.late_by_one(line) for line in log.rounds] == [2, 1, 0, 1]


def test_the_panels_show_members_and_what_each_client_spent(make: Callable[..., RunLog]) -> None:
    log, other = make(lines=changing()), make("exact")
    drawn = {panel.title: panel for panel in panels([log, other])}
    members, spent = drawn["Members: LightDP repair"], drawn["Privacy spent by client, ε: LightDP repair"]
    assert "10 clients, 3 rosters formed (triangles), 1 closed" in members.note
    assert "0.0000 to 0.9000, median 0.4500" in spent.note
    values = spent.chart.to_dict()["layer"][0]["data"]["values"]
    assert [row["client"] for row in values] == [*range(9, -1, -1)]
    assert not [title for title in drawn if "exact" in title and title.startswith(("Members", "Privacy spent by"))]


def test_the_table_says_population_rosters_and_the_spread_of_epsilon(make: Callable[..., RunLog]) -> None:
    log, other = make(lines=changing()), make("exact")
    found = facts(log)
    assert (found["population"], found["rosters"]) == ("10", "3")
    assert found["ε by client"] == "0.0000 / 0.4500 / 0.9000"
    assert "population" not in facts(other)
    [table] = run_tables([other, log])
    assert [len(list(column.cells)) for column in table.columns] == [len(found)] * 3
    assert "–" in [str(cell) for cell in table.columns[1].cells]


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_is_cut_off_is_shown_too(make: Callable[..., RunLog], ended: bool) -> None:
    log = make(lines=changing() if ended else changing()[:-1])
    assert (facts(log)["ε by client"] == "–") is not ended
    assert any(panel.title.startswith("Members") for panel in panels([log]))
