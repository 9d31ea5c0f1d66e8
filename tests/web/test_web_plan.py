"""The planner answers as `lightdp.plan` does, and what it gives to copy is what it shows."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

import lightdp
from lightdp import planning
from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.report import colours
from lightdp.runlog import RunLog
from lightdp.schemes import schemes
from lightdp.web._copied import texts
from lightdp.web._folder import Folder
from lightdp.web._measured import nearest
from lightdp.web._plan import CONTROLS, answer, field_of, others, settings
from lightdp.web._stream import news
from lightdp_lab.measured import summary
from support.asked import BEARER, Asked
from support.run_logs import logged, written

COMPARED = {"a": "repair", "b": "exact", "c": "repair"}
ROOT = Path(__file__).parents[2]
ASKED: dict[str, Any] = {
    "clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3.0, "delta": 1e-5,
}  # fmt: skip
REQUESTS: list[dict[str, Any]] = [
    {},
    {"unit": "client", "parameters": 10_000, "clip": 0.5},
    {"calibration": "exact", "records": 50_000, "parameters": 1000, "adjacency": "replace"},
    {"clients": 20, "colluders": 4, "stragglers": 4, "population": 100, "unit": "client"},
    {"sampling_rate": 0.1, "rounds": 20},
    {"calibration": "paper"},
    {"calibration": "local", "unit": "client", "grace": 1},
    {"calibration": "smpc"},
]


@pytest.mark.parametrize("more", REQUESTS)
def test_the_planner_gives_the_numbers_of_lightdp_plan(tmp_path: Path, more: dict[str, Any]) -> None:
    asked = ASKED | more
    reply = Asked(tmp_path).get("/api/plan", params={name: str(value) for name, value in asked.items()}, headers=BEARER)
    assert reply.status_code == 200
    found, plan = reply.json(), lightdp.plan(**asked)
    assert found["asked"] == asked
    assert found["plan"] == json.loads(json.dumps(plan.to_dict()))
    assert found["mu"] == rounded_up(plan.mu)
    assert found["epsilon"] == rounded_up(plan.epsilon())
    assert found["std"] == math.sqrt(plan.noise_in_mean())
    assert float(found["power"]) >= 100 * plan.power() - 1e-9
    assert found["sampled"] == (planning.holds_for(plan) if "sampling_rate" in more else None)
    assert found["sampled"] is None or found["sampled"] in " ".join(str(plan).split())
    assert found["bits"] == plan.wire_bits
    if (length := plan.request.parameters) is not None:
        assert found["ratio"] == planning.noise_ratio(plan, length)
        assert found["upload"] == math.ceil(plan.wire_bits * length / 8)


def test_all_schemes_are_those_of_compare(tmp_path: Path) -> None:
    asked = ASKED | {"parameters": 1000}
    found = Asked(tmp_path).get("/api/others", params=asked, headers=BEARER).json()
    rows = planning.compare(plan := lightdp.plan(**asked))
    assert [(row["scheme"], row["noise_in_mean"]) for row in found["schemes"]] == [
        (row.scheme.name, row.noise_in_mean) for row in rows
    ]
    assert [row["cells"] for row in found["schemes"]] == [row.cells(rows[0].noise_in_mean) for row in rows]
    assert [row["scheme"] for row in found["schemes"] if row["chosen"]] == ["repair"]
    assert found["advice"] == planning.noise_advice(plan, 1000)
    assert found["page"] == str(plan)
    cohorts = others(ASKED | {"clients": 20, "colluders": 4, "stragglers": 4, "population": 100})
    assert [each["title"] for each in cohorts["members"]] == ["20 of 100 in turn", "all 100", "the same 20"]


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"delta": "2"}, "delta", "delta must be in (0, 1), got delta=2"),
        ({"clients": "many"}, "clients", "clients must be an integer, got clients='many'"),
        ({"colluders": "50"}, "colluders", "colluders must be in 0..49"),
        ({"epsilon": "nan"}, "epsilon", "epsilon must be finite"),
        ({"unit": "town"}, "unit", "unit must be one of record, client"),
        ({"clients": "1000001"}, "clients", "clients must be in 0..1000000"),
        ({"rounds": "20000", "sampling_rate": "0.1"}, "rounds", "at most 10,000 turns"),
        ({"calibration": "smpc", "colluders": "45"}, None, "smpc"),
        ({"colour": "red"}, None, "settings must be of this page, got 'colour'"),
        ({"epsilon": ""}, "epsilon", "epsilon must be given"),
    ],
)
def test_an_error_is_one_line_beside_its_field(
    tmp_path: Path, changed: dict[str, str], field: str | None, words: str
) -> None:
    reply = Asked(tmp_path).get("/api/plan", params=ASKED | changed, headers=BEARER)
    assert reply.status_code == 422
    found = reply.json()
    assert found["field"] == field
    assert words.lower() in found["error"].lower()
    assert "\n" not in found["error"]


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ArgumentError, match="clients must be given once"):
        settings([("clients", "2"), ("clients", "3")])


def test_the_settings_of_a_new_page_have_a_plan_and_stand_on_it(tmp_path: Path) -> None:
    asked = settings([])
    assert answer(asked)["ratio"] < 1
    html = Asked(tmp_path).get("/plan", headers=BEARER).text
    for control in CONTROLS:
        assert f"for={control.name}>" in html
        assert f"id={control.name} name={control.name}" in html
        assert field_of(f"{control.name} must be") == control.name


@pytest.mark.parametrize("more", REQUESTS)
def test_the_command_and_the_python_that_are_copied_make_the_same_plan(more: dict[str, Any]) -> None:
    asked = ASKED | more
    plan = lightdp.plan(**asked)
    found = texts(asked, plan)
    space: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(str(found["python"]), "copied", "exec"), space)  # noqa: S102  ours
    assert space["plan"].to_dict() == plan.to_dict()
    name, command, *flags = shlex.split(str(found["command"]))
    assert (name, command) == ("lightdp", "plan")
    run = subprocess.run(
        [sys.executable, "-m", "lightdp", "plan", *flags, "--json"], capture_output=True, text=True, check=True
    )
    printed = json.loads(run.stdout)
    assert {key: printed[key] for key in plan.to_dict()} == json.loads(json.dumps(plan.to_dict()))


@pytest.mark.parametrize("more", REQUESTS)
def test_the_app_of_flower_that_is_copied_runs_where_it_can_be_deployed(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    asked = ASKED | more
    plan = lightdp.plan(**asked)
    found = texts(asked, plan)["flower"]
    if asked.get("calibration") == "smpc":
        assert found is None
        return
    space: dict[str, Any] = {}
    exec(compile(str(found), "copied", "exec"), space)  # noqa: S102  ours
    assert space["strategy"].plan.request.but(momentum=0.9) == plan.request.but()
    assert space["app"] is not None


def test_what_was_measured_is_the_summary_of_the_results() -> None:
    bundled = ROOT / "src/lightdp/web/measured.json"
    assert bundled.read_text() == summary(ROOT / "results"), "python -m lightdp_lab.measured results makes it"


def test_measured_curves_are_the_nearest_to_the_plan() -> None:
    near = {(each["model"], each["scheme"]): each for each in nearest(lightdp.plan(**ASKED | {"epsilon": 7.0}))}
    assert {each["epsilon"] for each in near.values()} == {6.0}
    assert near["scattering-linear", "repair"]["colluders"] == 10
    many = nearest(lightdp.plan(**ASKED | {"colluders": 39}))
    (repair,) = (each for each in many if (each["model"], each["scheme"]) == ("scattering-linear", "repair"))
    assert repair["colluders"] == 40
    line = json.loads((ROOT / "results/training-wrn-16-4.jsonl").read_text().splitlines()[0])
    wanted = ["wrn-16-4", "central", line["config"]["epsilon"]]
    bundled = json.loads((ROOT / "src/lightdp/web/measured.json").read_text())
    (same,) = (each for each in bundled if [each[key] for key in ("model", "scheme", "epsilon")] == wanted)
    assert same["curve"] == [[t, value] for t, value, *_ in line["curve"]]


def test_the_pages_have_the_colours_of_reports_and_no_others(tmp_path: Path) -> None:
    web = ROOT / "src/lightdp/web"
    own = "".join(path.read_text() for path in web.iterdir() if path.suffix in (".css", ".js", ".html"))
    assert re.findall(r"(?<!&)#[0-9a-f]{3,8}\b|\b(?:rgb|hsl)a?\(", own) == []
    page = Asked(tmp_path).get("/plan", headers=BEARER).text
    for scheme in schemes().values():
        assert f"--scheme-{scheme.name}: {scheme.colour};" in page
    logs = [RunLog.read(written(tmp_path / f"{name}.jsonl", logged(kind))) for name, kind in COMPARED.items()]
    found, _ = news(Folder(tmp_path), [log.path.name for log in logs], ["", "", ""])
    drawn = [(each["figures"]["colour"], each["figures"]["dash"]) for each in found]
    assert drawn == [(colour, " ".join(map(str, dash))) for colour, dash in colours(logs)]
    assert len(set(drawn)) == 3
