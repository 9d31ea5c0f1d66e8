from __future__ import annotations

import importlib
import itertools
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest

import lightdp
from lightdp.errors import ArgumentError, LightDPError, MissingExtraError
from lightdp.planning import Plan, compare
from lightdp.report import plan_chart, save, save_plan
from lightdp.report._plan import plan_panels
from lightdp.schemes import BUILT_IN
from lightdp.stragglers import binomial, uniform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE: dict[str, Any] = {
    "clients": 50,
    "colluders": 10,
    "stragglers": 10,
    "rounds": 150,
    "epsilon": 3,
    "delta": 1e-5,
    "calibration": "exact",
}
SMALL = EXAMPLE | {"clients": 8, "colluders": 2, "stragglers": 2}
LEVELS = ["paper", "exact", "repair"]
NAMES = {scheme.name: scheme.label for scheme in BUILT_IN.values() if scheme.planned is not None}
PNG = bytes.fromhex(  # one pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360"
    "00000002000148afa4710000000049454e44ae426082"
)
SWEEPS = ["colluders", "stragglers", "epsilon"]
KINDS = {"individual σ_U": "sigma_individual", "pairwise σ_K": "sigma_pairwise"}


class Panels:
    """What a chart draws: `levels[swept][kind]` and `noise`, each as {scheme: {x: y}}; `here` is the rule."""

    def __init__(self, chosen: Plan) -> None:
        noise, *levels = (panel.chart.to_dict() for panel in plan_panels(chosen))
        places = itertools.product(KINDS, SWEEPS)
        found = {place: self._lines(panel["layer"][0]) for place, panel in zip(places, levels, strict=True)}
        self.levels = {swept: {kind: found[kind, swept] for kind in KINDS} for swept in SWEEPS}
        rule, lines = noise["layer"]
        self.here = [row["x"] for row in rule["data"]["values"]]
        self.noise = self._lines(lines["layer"][0])

    @staticmethod
    def _lines(panel: dict[str, Any]) -> dict[str, dict[float, float]]:
        assert panel["encoding"]["y"]["field"] == "value"
        result: dict[str, dict[float, float]] = {}
        for row in panel["data"]["values"]:
            scheme = next(key for key, name in NAMES.items() if name == row["scheme"])
            result.setdefault(scheme, {})[row["x"]] = row["value"]
        return result


@pytest.fixture(scope="module")
def drawn() -> Panels:
    return Panels(lightdp.plan(**EXAMPLE))


@pytest.mark.parametrize("swept", SWEEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_panel_has_a_line_for_each_calibration(drawn: Panels, swept: str, kind: str) -> None:
    lines = drawn.levels[swept][kind]
    assert sorted(lines) == sorted(LEVELS)
    assert {len(line) for line in lines.values()} == {39 if swept == "stragglers" else 48}


def test_the_noise_panel_has_a_line_for_every_scheme_and_marks_the_plan(drawn: Panels) -> None:
    assert sorted(drawn.noise) == sorted(NAMES)
    assert {len(line) for line in drawn.noise.values()} == {40}
    assert drawn.here == [10]


@pytest.mark.parametrize(("swept", "low", "high"), [("colluders", 0, 49), ("stragglers", 1, 39), ("epsilon", 0.75, 12)])
def test_sweeps_reach_as_far_as_plans_do(drawn: Panels, swept: str, low: float, high: float) -> None:
    line = drawn.levels[swept]["pairwise σ_K"]["exact"]
    assert [min(line), max(line)] == pytest.approx([low, high])


@pytest.mark.parametrize("scheme", LEVELS)
@pytest.mark.parametrize("swept", SWEEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_levels_drawn_are_those_of_plans(drawn: Panels, scheme: str, swept: str, kind: str) -> None:
    line = drawn.levels[swept][kind][scheme]
    for x in (min(line), sorted(line)[len(line) // 3], max(line)):
        expected = lightdp.plan(**(EXAMPLE | {swept: x, "calibration": scheme}))
        assert line[x] == getattr(expected, KINDS[kind])


@pytest.mark.parametrize("stragglers", [0, 10, 39])
def test_noise_drawn_is_that_of_a_comparison(drawn: Panels, stragglers: int) -> None:
    for row in compare(lightdp.plan(**(EXAMPLE | {"stragglers": stragglers}))):
        assert drawn.noise[row.scheme.name][stragglers] == row.noise_in_mean


def test_the_example_is_drawn_with_its_published_figures(drawn: Panels) -> None:
    assert drawn.levels["stragglers"]["individual σ_U"]["exact"][10] == pytest.approx(4.98014, abs=5e-6)
    assert drawn.noise["exact"][10] == pytest.approx(1.659, abs=5e-4)


def test_settings_of_the_plan_are_kept_in_every_panel() -> None:
    settings = SMALL | {"clip": 2.0, "adjacency": "replace", "unit": "client", "late": "unseen", "reserve": "worst"}
    panels = Panels(lightdp.plan(**settings))
    repair = lightdp.plan(**(settings | {"colluders": 3, "calibration": "repair"}))
    assert panels.levels["colluders"]["individual σ_U"]["repair"][3] == repair.sigma_individual
    assert panels.noise["repair"][2] == lightdp.plan(**(settings | {"calibration": "repair"})).noise_in_mean()


def test_a_given_law_holds_where_stragglers_are_not_swept() -> None:
    law = binomial(2, 8, 0.05)
    panels = Panels(lightdp.plan(**SMALL, straggler_law=law))
    line = panels.levels["colluders"]["pairwise σ_K"]["exact"]
    assert line[2] == lightdp.plan(**SMALL, straggler_law=law).sigma_pairwise
    assert line[2] != lightdp.plan(**SMALL).sigma_pairwise
    line = panels.levels["stragglers"]["pairwise σ_K"]["exact"]
    assert line[2] == lightdp.plan(**SMALL, straggler_law=uniform(2)).sigma_pairwise


def test_sparse_graphs_are_drawn_without_the_paper() -> None:
    panels = Panels(lightdp.plan(**SMALL, degree=4))
    assert sorted(panels.levels["epsilon"]["pairwise σ_K"]) == ["exact", "repair"]
    assert sorted(panels.noise) == sorted(set(NAMES) - {"paper"})


def test_a_plan_with_more_stragglers_than_secure_aggregation_bears_lies_inside_its_panel() -> None:
    panels = Panels(lightdp.plan(**(SMALL | {"colluders": 5, "stragglers": 5})))
    assert panels.here == [5]
    assert max(panels.noise["exact"]) == 5
    assert max(panels.noise["smpc"]) == 2


@pytest.mark.parametrize(("clients", "colluders", "stragglers"), [(2, 0, 0), (2, 1, 0), (3, 1, 1), (3, 2, 0)])
def test_the_smallest_plans_are_drawn_with_visible_points(clients: int, colluders: int, stragglers: int) -> None:
    chosen = lightdp.plan(**(EXAMPLE | {"clients": clients, "colluders": colluders, "stragglers": stragglers}))
    panels = Panels(chosen)
    assert all(sorted(panels.levels[swept][kind]) == sorted(LEVELS) for swept in SWEEPS for kind in KINDS)
    assert sorted(panels.noise) == sorted(NAMES)
    noise, *levels = (panel.chart.to_dict()["layer"] for panel in plan_panels(chosen))
    swept = [layer[0] for place, layer in enumerate(levels) if SWEEPS[place % 3] != "epsilon"]
    assert all(line["mark"]["point"] for line in (*swept, noise[1]["layer"][0]))


def test_axes_of_clients_begin_at_0_and_count_whole_ones() -> None:
    chosen = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=3, delta=1e-5)
    for panel in plan_panels(chosen):
        for layer in panel.chart.to_dict()["layer"]:
            mark, x = layer.get("mark", {}), layer.get("encoding", {}).get("x", {})
            if isinstance(mark, dict) and mark.get("type") == "line" and x["title"][0] != "ε":
                assert (x["axis"]["format"], x["scale"]["domain"][0], mark["interpolate"]) == ("d", 0, "linear")
                assert x["axis"]["tickCount"] == x["scale"]["domain"][1]


def test_title_and_subtitle_say_what_is_drawn() -> None:
    title = plan_chart(lightdp.plan(**SMALL)).to_dict()["title"]
    assert title["text"]
    assert "N = 8, C̄ = 2, S̄ = 2, 150 rounds, ε = 3 at δ = 1e-05" in title["subtitle"][0]


# Files


def test_save_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    save(plan_chart(lightdp.plan(**SMALL, degree=4)), file)
    before = file.read_bytes()
    save(plan_chart(lightdp.plan(**SMALL)), file)
    assert file.read_text(encoding="utf-8").startswith("<svg")
    assert len(file.read_text(encoding="utf-8")) > 5000
    assert file.read_bytes() != before
    assert list(tmp_path.iterdir()) == [file]


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each part of a .png file, whose checksums must be right."""
    at = 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        body, check = png[at + 4 : at + 8 + size], png[at + 8 + size : at + 12 + size]
        assert zlib.crc32(body) == int.from_bytes(check)
        yield body[:4], body[4:]
        at += 12 + size


def test_a_png_file_is_well_formed_and_says_whose_it_is(tmp_path: Path) -> None:
    file = tmp_path / "plan.png"
    save(plan_chart(lightdp.plan(**SMALL)), file)
    found = [*chunks(file.read_bytes())]
    assert (found[0][0], found[1]) == (b"IHDR", (b"tEXt", b"Software\0lightdp"))
    assert (b"tEXt", b"Software\0lightdp") not in chunks(PNG)


def test_a_saved_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    file, other = tmp_path / "plan.svg", tmp_path / "other"
    other.touch()
    save(plan_chart(lightdp.plan(**SMALL)), file)
    assert file.stat().st_mode == other.stat().st_mode


class Broken:
    """A chart that fails when half of it is written."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def save(self, name: str, **_: object) -> None:
        with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123  as altair is given it
            file.write("half")
        raise self.error


@pytest.mark.parametrize(
    "error", [RuntimeError("renderer"), KeyboardInterrupt(), OSError(28, "No space left on device")]
)
@pytest.mark.parametrize("before", [None, "<svg><!--lightdp--></svg>"])
def test_a_failure_leaves_what_was_there_and_no_half_file(
    tmp_path: Path, error: BaseException, before: str | None
) -> None:
    file = tmp_path / "plan.svg"
    if before is not None:
        file.write_text(before)
    expected = ArgumentError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        save(Broken(error), file)
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize(
    ("suffix", "notes"),
    [
        (".html", b"<!doctype html><title>My notes about lightdp</title>"),
        (".svg", b'<svg xmlns="http://www.w3.org/2000/svg" class="marks"><title>lightdp</title></svg>'),
        (".png", PNG),
    ],
)
def test_files_that_somebody_else_wrote_are_not_replaced(tmp_path: Path, suffix: str, notes: bytes) -> None:
    file, drawn = tmp_path / f"notes{suffix}", tmp_path / f"plan{suffix}"
    file.write_bytes(notes)
    plan = lightdp.plan(clients=5, colluders=1, stragglers=1, rounds=5, epsilon=3, delta=1e-5, calibration="exact")
    with pytest.raises(ArgumentError, match=r"plot must be new, or a page or picture of lightdp: remove .*notes"):
        save_plan(plan, file)
    assert file.read_bytes() == notes
    for _ in range(2):  # our own are
        save_plan(plan, drawn)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"plan[.]svg.*No space left"):
        save(Broken(OSError(28, "No space left on device")), tmp_path / "plan.svg")


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.html", "plan.SVG", "none/plan.svg"])
def test_save_refuses_what_it_cannot_write(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        save(plan_chart(lightdp.plan(**SMALL)), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_altair_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lightdp.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtraError, match=r"from a clone: pip install '\.\[report\]'") as caught:
        importlib.import_module("lightdp.report")
    assert isinstance(caught.value, LightDPError)
