"""The mod alone: the limits of a node hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from lightdp.errors import ProtocolError
from lightdp.flower import LightDP, _plans
from lightdp.keys import Identity
from support.flower_grid import LocalGrid
from support.flower_talk import Talk, a_plan, an_app, refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("lightdp-max-epsilon", 7.9, "epsilon=8 is above lightdp-max-epsilon=7.9"),
        ("lightdp-max-delta", 1e-6, "delta=1e-05 is above lightdp-max-delta=1e-06"),
        ("lightdp-min-colluders", 2, "colluders=1 is below lightdp-min-colluders=2"),
        ("lightdp-max-stragglers", 0, "stragglers=1 is above lightdp-max-stragglers=0"),
        ("lightdp-max-rounds", 7, "rounds=8 is above lightdp-max-rounds=7"),
        ("lightdp-max-rounds", 0, "lightdp-max-rounds must be >= 1"),
        ("lightdp-unit", "record", "the plan's unit is 'client', and this node accepts lightdp-unit='record'"),
        (
            "lightdp-adjacency",
            "replace",
            "is 'add-remove', and this node accepts lightdp-adjacency='replace'",
        ),
        ("lightdp-unit", "patient", "lightdp-unit must be one of record, client, got lightdp-unit='patient'"),
        ("lightdp-adjacency", 1, "lightdp-adjacency must be one of add-remove, replace"),
        ("lightdp-max-stragglers", -1, "lightdp-max-stragglers must be >= 0"),
        ("lightdp-max-epsilon", "7", "lightdp-max-epsilon must be a number"),
        ("lightdp-max-epsilon", True, "lightdp-max-epsilon must be a number"),
        ("lightdp-max-epsilon", float("nan"), "lightdp-max-epsilon must be finite"),
        ("lightdp-max-delta", 2.0, "lightdp-max-delta must be in (0, 1)"),
        ("lightdp-min-colluders", 1.5, "lightdp-min-colluders must be an integer"),
        ("lightdp-record-clip", True, "lightdp-record-clip must be a number"),
        ("lightdp-record-rate", 1.5, "lightdp-record-rate must be in (0, 1]"),
        ("lightdp-state", 3, "lightdp-state must be a path"),
        ("lightdp-state", "/nowhere/at/all/state.json", "lightdp-state must be a file in a folder that exists"),
        ("lightdp-pins", "/nowhere/pins", "lightdp-identity and lightdp-pins must name files that can be read"),
        ("lightdp-identity", "/nowhere/key", "lightdp-identity and lightdp-pins must name files that can be read"),
        ("lightdp-record-clip", 1e-200, "lightdp-record-clip must be in [1e-100, 1e+100]"),
        ("lightdp-masks", "drawn", "lightdp-masks must be one of any, gaussian, got lightdp-masks='drawn'"),
        ("lightdp-total-epsilon", 20.0, "lightdp-total-epsilon and lightdp-total-delta must be set together"),
        ("lightdp-total-delta", 1e-5, "lightdp-total-epsilon and lightdp-total-delta must be set together"),
        ("lightdp-max-eps", 1.0, "node_config must not have ['lightdp-max-eps']"),
        ("lightdp_max_epsilon", 1.0, "node_config must not have ['lightdp_max_epsilon']; known are"),
        ("lightdpmaxepsilon", 1.0, "node_config must not have ['lightdpmaxepsilon']"),
        ("LightDP-max-epsilon", 1.0, "node_config must not have ['LightDP-max-epsilon']"),
        ("lightdp-simulation", True, "node_config must not have ['lightdp-simulation']"),
        ("lightdp-name", "../elsewhere", "lightdp-name must be 1 to 64 letters"),
        ("lightdp-allow-metrics", 1, "lightdp-allow-metrics must be names"),
    ],
)
def test_a_plan_beyond_a_limit_and_a_limit_that_makes_no_sense_are_refused(limit: str, value: Any, why: str) -> None:
    talk = Talk()
    talk.grid.nodes[0].config[limit] = value
    assert refused(talk.key(0), why)
    assert talk.key(1).has_content()


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": 10_001},
        {"epsilon": 2e6, "rounds": 1_000_000},
        {"unit": "record", "sampling_rate": 0.01},
        {"delta": 0.1},
        {"adjacency": "replace"},
        {"colluders": 0},
        {"clients": 4, "degree": 3, "stragglers": 2, "straggler_law": {"name": "uniform", "pmf": [0.5, 0.25, 0.25]}},
    ],
)
def test_a_plan_beyond_a_limit_is_refused_before_it_is_computed(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk()
    talk.sets({"lightdp-max-epsilon": 1e6, "lightdp-max-delta": 1e-5, "lightdp-adjacency": "add-remove"})
    talk.sets({"lightdp-min-colluders": 1, "lightdp-max-stragglers": 1})

    def computed(_: Any) -> Any:
        raise AssertionError("it was computed")

    monkeypatch.setattr(_plans, "solve", computed)
    text = json.dumps(json.loads(talk.plan.to_json()) | changed)
    assert refused(talk.key(0, plan=text), "lightdp/protocol: the plan's ")


def test_a_limit_that_is_tightened_in_mid_run_holds_at_once() -> None:
    talk = Talk()
    talk.enrol()
    talk.grid.nodes[0].config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.grid.handle(0, talk.start()), "above lightdp-max-epsilon=1")


def test_nodes_that_refuse_the_plan_are_named_when_the_key_round_fails() -> None:
    grid = LocalGrid(an_app(), 3)
    grid.nodes[1].config["lightdp-max-epsilon"] = 1.0
    strategy = LightDP(FedAvg(), a_plan(), wait=0.01)
    with pytest.raises(ProtocolError, match=r"2 of at least 3 clients .* node 1007: .*above lightdp-max-epsilon=1"):
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(4))}))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("lightdp-state", "/srv/patients of ward 7/state.json", "got '<lightdp-state>'"),
        ("lightdp-pins", "/srv/patients of ward 7/pins", "files that can be read"),
        ("lightdp-identity", "~/patients of ward 7/key", "files that can be read"),
        ("lightdp-pins", "patients of ward 7/pins", "files that can be read"),
    ],
)
def test_a_refusal_does_not_tell_the_server_where_files_of_the_node_are(
    key: str, value: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk()
    talk.grid.nodes[0].config[key] = value
    reply = talk.key(0)
    assert refused(reply, why)
    assert f"<{key}>" in str(reply.error.reason)
    assert "patients" not in str(reply.error.reason)
    assert "patients of ward 7" in caplog.text


def test_an_older_copy_of_a_state_is_refused_without_its_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk()
    talk.grid.nodes[0].config["lightdp-state"] = str(tmp_path)
    talk.enrol()
    [path] = tmp_path.glob("*.json")
    old = path.read_bytes()
    assert talk.grid.handle(0, talk.start()).has_content()
    path.write_bytes(old)
    talk.grid.restart(0)
    reply = talk.grid.handle(0, talk.start())
    assert refused(reply, "an older copy could answer a round again")
    assert str(tmp_path) not in str(reply.error.reason)
    assert str(tmp_path) in caplog.text


def test_a_node_without_a_total_or_colluders_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk()
    total = {"lightdp-total-epsilon": 20.0, "lightdp-total-delta": 1e-5, "lightdp-name": "me"}
    talk.grid.nodes[1].config |= total
    talk.grid.nodes[2].config |= total | {"lightdp-min-colluders": 1, "lightdp-name": "you"}
    said = []
    for at in (0, 0, 1, 2):
        caplog.clear()
        assert talk.key(at).has_content()
        said.append([f"lightdp-{word}" in caplog.text for word in ("total-epsilon", "min-colluders")])
    assert said == [[True, True], [False, False], [False, True], [False, False]]


def test_a_file_that_holds_no_pins_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("patient 17, an odd value\n", encoding="ascii")
    talk = Talk()
    talk.grid.nodes[0].config["lightdp-pins"] = str(tmp_path / "records.csv")
    reply = talk.key(0)
    assert refused(reply, "pins must be 'name 64-hex-digits' lines, which line 1 is not")
    assert "patient" not in str(reply.error.reason)


def test_pins_and_identities_are_read_from_files(tmp_path: Path) -> None:
    talk = Talk(plan=a_plan(colluders=0))
    lines = []
    for i, node in enumerate(talk.grid.nodes):
        identity = Identity.generate()
        identity.save(tmp_path / f"{i}.pem")
        lines.append(f"site-{i} {identity.public.hex()}")
        node.config |= {"lightdp-identity": str(tmp_path / f"{i}.pem"), "lightdp-name": f"site-{i}"}
    (tmp_path / "pins").write_text("\n".join(lines))
    (tmp_path / "two").write_text("\n".join(lines[:2]))
    talk.grid.nodes[0].config["lightdp-pins"] = str(tmp_path / "pins")
    talk.grid.nodes[1].config["lightdp-pins"] = str(tmp_path / "two")
    talk.enrol()
    assert talk.grid.handle(0, talk.start()).has_content()
    assert refused(talk.grid.handle(1, talk.start()), "clients that are not pinned, got ['site-2']")


DRAWN: Any = {"colluders": 0, "calibration": "repair", "masks": "drawn", "rounds": 4}


@pytest.mark.parametrize("own", [None, "any", "gaussian"])
@pytest.mark.parametrize("asked", [None, "any", "gaussian"])
def test_an_operator_can_refuse_drawn_masks_and_a_server_cannot_allow_them(own: Any, asked: Any) -> None:
    talk = Talk(plan=a_plan(**DRAWN))
    talk.sets({} if own is None else {"lightdp-masks": own})
    talk.grid.run_config |= {} if asked is None else {"lightdp-masks": asked}
    reply = talk.key(0)
    if "gaussian" in {own, asked}:
        assert refused(reply, "masks are 'drawn', and this node accepts lightdp-masks='gaussian': plan with masks=")
    else:
        assert reply.has_content()


@pytest.mark.parametrize("plan", [{"masks": "gaussian", "calibration": "repair"}, {"calibration": "exact"}])
def test_plans_with_gaussian_masks_are_for_all_nodes(plan: Any) -> None:
    assert Talk(plan=a_plan(**plan)).sets({"lightdp-masks": "gaussian"}).key(0).has_content()


def test_a_plan_whose_masks_or_those_of_a_roster_may_be_drawn_is_refused_before_it_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk(plan=a_plan(**DRAWN)).sets({"lightdp-masks": "gaussian"})
    monkeypatch.setattr(_plans, "solve", None)
    text = json.dumps(json.loads(talk.plan.to_json()) | {"masks": "auto"})
    assert refused(talk.key(0, plan=text), "masks are 'auto', and this node accepts lightdp-masks='gaussian'")
    request = a_plan(masks="gaussian", calibration="repair").request
    assert request.but(clients=5).among(4).masks == "gaussian"  # so what a roster has follows from the plan


def test_drawn_masks_that_are_refused_in_mid_run_are_refused_at_once() -> None:
    talk = Talk(plan=a_plan(**DRAWN))
    talk.enrol()
    talk.grid.nodes[0].config["lightdp-masks"] = "gaussian"
    assert refused(talk.grid.handle(0, talk.start()), "this node accepts lightdp-masks='gaussian'")


@pytest.mark.parametrize(
    ("plan", "own", "told"),
    [(DRAWN, None, 1), (DRAWN, "any", 0), (DRAWN | {"masks": "gaussian"}, None, 0)],
)
def test_a_node_that_says_nothing_about_drawn_masks_is_told_once_what_they_ask(
    plan: Any, own: Any, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(plan=a_plan(**plan))
    talk.grid.run_config["lightdp-masks"] = "any"  # of the server, which does not count as the operator's word
    talk.grid.nodes[0].config |= {} if own is None else {"lightdp-masks": own}
    for _ in range(2):
        assert talk.key(0).has_content()
    assert caplog.text.count('lightdp-masks="gaussian" refuses such plans') == told
