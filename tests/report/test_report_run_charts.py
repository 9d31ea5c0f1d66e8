"""Charts of runs draw what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightdp.report import run_chart, uploads
from lightdp.report._panels import panels
from support.run_logs import Page, drawn, logged, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.runlog import RunLog


@pytest.mark.parametrize(("place", "field"), [(0, "accuracy"), (1, "epsilon"), (2, "noise_std")])
def test_lines_of_three_runs_are_drawn_as_recorded(three: tuple[Page, list[RunLog]], place: int, field: str) -> None:
    names = {"LightDP repair": "repair", "LightDP exact": "exact"}
    if field == "accuracy":
        names["no noise"] = "none"
    expected = {name: recorded(logged(scheme), field) for name, scheme in names.items()}
    assert drawn(three[0].charts[place]) == expected


def test_the_residual_is_drawn_where_there_is_one(three: tuple[Page, list[RunLog]]) -> None:
    assert drawn(three[0].charts[3]) == {"LightDP repair": recorded(logged(), "residual_std")}


def test_the_budget_is_a_rule(three: tuple[Page, list[RunLog]]) -> None:
    rules = [layer for layer in three[0].charts[1]["layer"] if layer["mark"]["type"] == "rule"]
    assert [row["budget"] for rule in rules for row in rule["data"]["values"]] == [3.0]


def test_runs_have_the_same_colour_in_every_panel(three: tuple[Page, list[RunLog]]) -> None:
    scales = [
        layer["encoding"]["color"]["scale"]
        for chart in three[0].charts[:4]
        for layer in chart["layer"]
        if layer.get("encoding", {}).get("color", {}).get("field") == "run"
    ]
    assert len(scales) >= 8
    assert all(scale == scales[0] for scale in scales)
    assert scales[0]["domain"] == ["LightDP repair", "LightDP exact", "no noise"]
    assert len(set(scales[0]["range"])) == 3


@pytest.mark.parametrize(("place", "scheme"), [(4, "repair"), (5, "exact"), (6, "none")])
def test_stragglers_are_drawn_as_recorded(three: tuple[Page, list[RunLog]], place: int, scheme: str) -> None:
    rows = three[0].charts[place]["data"]["values"]
    wanted = ("round", "used", "late", "lost")
    assert [[row[key] for key in wanted] for row in rows[:-1]] == [
        [line[key] for key in wanted] for line in logged(scheme)[1:-1]
    ]


def test_uploads_used_one_round_late_are_drawn_in_the_round_that_they_are_of(make: Callable[..., RunLog]) -> None:
    lines = logged(rounds=4)
    for line, joined in zip(lines[1:], ([], [], [0], [0], []), strict=True):
        line |= {"joined": len(joined), "joined_clients": joined}
    panel = next(panel for panel in panels([make(lines=lines)]) if panel.title.startswith("Stragglers"))
    spec = panel.chart.to_dict()
    rows = [[row[key] for key in ("round", "used", "next", "late", "lost")] for row in spec["data"]["values"][:-1]]
    assert rows == [[1, 9, 0, 0, 1], [2, 8, 1, 0, 1], [3, 7, 1, 0, 2], [4, 10, 0, 0, 0]]
    assert panel.note == (
        "10 clients. On average 1 upload a round did not enter the model. "
        "2 uploads in 4 rounds entered the model one round late."
    )
    colour = spec["layer"][0]["encoding"]["color"]
    assert colour["scale"]["domain"] == ["used", "next", "late", "lost"]
    assert "'next': 'entered the model one round late'" in colour["legend"]["labelExpr"]


def test_uploads_of_a_void_round_are_not_called_late(make: Callable[..., RunLog]) -> None:
    lines = logged(rounds=4)
    lines[2] |= {"used": 0, "late": 6, "lost": 4}
    lines[3] |= {"used": 8, "late": 1, "lost": 1}
    panel = next(panel for panel in panels([make(lines=lines)]) if panel.title.startswith("Stragglers"))
    spec = panel.chart.to_dict()
    rows = [[row[key] for key in ("used", "late", "void", "lost")] for row in spec["data"]["values"][1:3]]
    assert rows == [[0, 0, 6, 4], [8, 1, 0, 1]]
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["used", "late", "void", "lost"]
    assert "'void': 'in a void round'" in spec["layer"][0]["encoding"]["color"]["legend"]["labelExpr"]


def test_the_partition_is_drawn_as_recorded(three: tuple[Page, list[RunLog]]) -> None:
    rows = three[0].charts[7]["data"]["values"]
    counts = logged()[0]["partition"]["counts"]
    assert {row["client"]: (row["class"], row["records"]) for row in rows} == {
        client: ([0, 1, 2, 3], row) for client, row in enumerate(counts)
    }
    assert three[0].charts[7]["transform"][0] == {"flatten": ["class", "records"]}
    assert "600 records at 10 clients, 6 to 114 each. The same in all runs." in three[0].text


def test_the_partition_calls_clients_by_their_names(make: Callable[..., RunLog]) -> None:
    lines = logged()
    lines[0]["partition"] = {"counts": [[1, 2], [3, 4]], "names": ['St. Mary\'s, "east"', "north\x1b"]}
    panel = panels([make(lines=lines)])[-1]
    assert panel.table is not None
    assert [row[0] for row in panel.table.rows] == ['St. Mary\'s, "east"', "north\N{REPLACEMENT CHARACTER}"]
    assert {row["name"] for row in panel.chart.to_dict()["data"]["values"]} == {row[0] for row in panel.table.rows}


def test_the_partition_calls_classes_by_their_names(make: Callable[..., RunLog]) -> None:
    lines = logged()
    lines[0]["partition"] = {"counts": [[1, 2], [3, 4]], "classes": ["no", "yes\x1b"]}
    panel = panels([make(lines=lines)])[-1]
    assert panel.table is not None
    assert panel.table.head == ["client", "class no", "class yes\N{REPLACEMENT CHARACTER}"]
    lines[0]["partition"]["classes"] = ["no"]  # not as many as there are
    panel = panels([make(lines=lines)])[-1]
    assert panel.table is not None
    assert panel.table.head == ["client", "class 0", "class 1"]


def test_a_partition_of_many_clients_says_how_many_are_drawn(make: Callable[..., RunLog]) -> None:
    lines = logged()
    lines[0]["partition"]["counts"] = [[1, 2]] * 201
    panel = panels([make(lines=lines)])[-1]
    assert "the first 200 clients are drawn" in panel.note
    assert sum(len(row["records"]) for row in panel.chart.to_dict()["data"]["values"]) == 400


def test_void_rounds_are_counted(make: Callable[..., RunLog]) -> None:
    lines = [line | {"used": 0, "lost": 10, "late": 0} if line.get("round") == 3 else line for line in logged()]
    assert "Rounds without any upload used: 1." in panels([make(lines=lines)])[4].note


def test_a_round_whose_uploads_were_used_with_the_next_is_not_void(make: Callable[..., RunLog]) -> None:
    lines = logged()
    lines[3] |= {"used": 0, "lost": 0, "late": 10}
    lines[4] |= {"joined": 10, "joined_clients": [*range(10)]}
    log = make(lines=lines)
    note, said = panels([log])[4].note, "1 round waited for late uploads: there even uploads on time entered the model"
    assert log.waited == 1
    assert "Rounds without" not in note
    assert f" {said} one round late." in note
    assert any(sentence == f"{said} one round late." for sentence in uploads(log))
    lines[6] |= {"used": 0, "lost": 0, "late": 10}
    lines[7] |= {"joined": 10, "joined_clients": [*range(10)]}
    assert "2 rounds waited for late uploads: there even uploads on time entered" in panels([make(lines=lines)])[4].note


def test_few_missing_uploads_are_counted_and_not_averaged(make: Callable[..., RunLog]) -> None:
    lines = logged()
    for line in lines[1:-1]:
        line |= {"used": 10, "late": 0, "lost": 0, "late_clients": [], "lost_clients": []}
    lines[5] |= {"used": 9, "lost": 1, "lost_clients": [3]}
    assert panels([make(lines=lines)])[4].note == "10 clients. 1 upload in 7 rounds did not enter the model."


def test_shares_of_uploads_tell_void_rounds_from_late_clients(make: Callable[..., RunLog]) -> None:
    lines = logged(rounds=4)
    lines[4] |= {"used": 0, "late": 10, "late_clients": [*range(10)]}
    assert uploads(make(lines=lines)) == ["Uploads: 60.0% on time, 5.0% too late, 25.0% in void rounds, 10.0% lost."]
    for line in lines[1:-1]:
        line |= {"used": 9, "late": 0, "lost": 1, "late_clients": [], "lost_clients": [0]}
    assert uploads(make(lines=lines)) == []


def test_accuracy_is_drawn_against_modelled_time_where_it_was_recorded(make: Callable[..., RunLog]) -> None:
    assert "Test accuracy against time" not in [panel.title for panel in panels([make()])]
    lines = logged(rounds=6)
    for line in lines[1:-1]:
        line |= {"modelled_seconds": 0.5 * line["round"], "failed": "unmask" if line["round"] == 3 else None}
    timed = make(lines=lines)
    assert timed.clock == [0.5, 1.5, 3.0, 5.0, 7.5, 10.5]
    panel = next(panel for panel in panels([timed, make("exact")]) if panel.title == "Test accuracy against time")
    assert "Failed rounds, which cost time and give nothing: 1." in panel.note
    line = next(layer for layer in panel.chart.to_dict()["layer"] if layer["mark"]["type"] == "line")
    times = [row["time"] for row in line["data"]["values"]]
    assert times == [1.5, 5.0, 10.5]  # every second round was looked at


def test_the_sheet_has_every_panel(three: tuple[Page, list[RunLog]]) -> None:
    rows = run_chart(three[1]).to_dict()["vconcat"]
    titles = [panel["title"]["text"] for row in rows[1:] for panel in row["hconcat"]]
    assert titles == [panel.title for panel in panels(three[1])]
