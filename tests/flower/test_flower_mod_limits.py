"""The mod alone: a node's own settings and limits hold, and plans travel as their arguments."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower import LightDP
from lightdp.flower._settings import Settings, planned
from lightdp.keys import Identity
from lightdp.protocol import ClientRound, Server
from lightdp.stragglers import binomial
from support.flower_grid import LocalGrid
from support.flower_talk import Talk, a_plan, an_app, enrolment, refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("lightdp-max-epsilon", 7.9, "epsilon=8 is above lightdp-max-epsilon=7.9"),
        ("lightdp-max-delta", 1e-6, "delta=1e-05 is above lightdp-max-delta=1e-06"),
        ("lightdp-min-colluders", 2, "colluders=1 is below lightdp-min-colluders=2"),
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
        ("lightdp-total-epsilon", 20.0, "lightdp-total-epsilon needs lightdp-state"),
        ("lightdp-max-eps", 1.0, "node_config must not have ['lightdp-max-eps']"),
        ("lightdp-name", "../elsewhere", "lightdp-name must be 1 to 64 letters"),
        ("lightdp-allow-metrics", 1, "lightdp-allow-metrics must be names"),
    ],
)
def test_a_plan_beyond_a_limit_and_a_limit_that_makes_no_sense_are_refused(limit: str, value: Any, why: str) -> None:
    talk = Talk()
    talk.grid.nodes[0].config[limit] = value
    assert refused(talk.key(0), why)
    assert talk.key(1).has_content()


def test_the_nodes_own_limit_comes_before_the_runs() -> None:
    talk = Talk()
    talk.grid.run_config["lightdp-max-epsilon"] = 100.0
    talk.grid.nodes[0].config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.key(0), "above lightdp-max-epsilon=1")
    assert talk.key(1).has_content()
    talk.grid.run_config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.key(2), "above lightdp-max-epsilon=1")


def test_a_limit_that_is_tightened_in_mid_run_holds_at_once() -> None:
    talk = Talk()
    talk.enrol()
    talk.grid.nodes[0].config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.grid.handle(0, talk.start()), "above lightdp-max-epsilon=1")


def test_nodes_that_refuse_the_plan_are_named_when_the_key_round_fails() -> None:
    grid = LocalGrid(an_app(), 3)
    grid.nodes[1].config["lightdp-max-epsilon"] = 1.0
    strategy = LightDP(FedAvg(), a_plan(), wait=0.01)
    with pytest.raises(ProtocolError, match=r"2 of the plan's 3 clients .* node 1007: .*above lightdp-max-epsilon=1"):
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(4))}))


def test_all_plans_together_stay_below_the_total(tmp_path: Path) -> None:
    talk = Talk()
    talk.grid.nodes[0].config |= {"lightdp-state": str(tmp_path / "s.json"), "lightdp-total-epsilon": 20.0}
    for run in (b"run number one..", b"run number two.."):
        talk.server = Server(talk.plan, length=4, run=run)
        for at in range(3):
            talk.server.enrol(enrolment(talk.key(at, run=run)))
        talk.server.roster()
        assert talk.key(0, run=run).has_content()  # asked twice is spent once
        assert talk.grid.handle(0, talk.start(run=run)).has_content()
        talk.grid.restart(0)
    assert refused(talk.key(0, run=b"run number three"), "epsilon=8 after 16 spent is above lightdp-total-epsilon=20")


def test_a_total_needs_a_state_that_no_server_can_lead_astray(tmp_path: Path) -> None:
    talk = Talk()
    node = talk.grid.nodes[0]
    node.config["lightdp-total-epsilon"] = 20.0
    talk.grid.run_config["lightdp-state"] = str(tmp_path / "s.json")
    assert refused(talk.key(0), "lightdp-total-epsilon needs lightdp-state in node_config")
    node.config["lightdp-state"] = str(tmp_path)  # a file for each node id, which the server gives
    assert refused(talk.key(0), "a folder with lightdp-name")
    talk.grid.run_config["lightdp-name"] = "another"
    assert refused(talk.key(0), "a folder with lightdp-name")
    node.config["lightdp-name"] = "node-7"
    assert talk.key(0).has_content()
    assert [path.name for path in tmp_path.glob("*.json")] == ["node-7.json"]


def test_a_file_that_holds_no_pins_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("patient 17, an odd value\n", encoding="ascii")
    talk = Talk()
    talk.grid.run_config["lightdp-pins"] = str(tmp_path / "records.csv")
    reply = talk.key(0)
    assert refused(reply, "pins must be 'name 64-hex-digits' lines, which line 1 is not")
    assert "patient" not in str(reply.error.reason)


def test_a_plan_without_uploads_spends_nothing_of_the_total(tmp_path: Path) -> None:
    talk = Talk()
    talk.grid.nodes[0].config |= {"lightdp-state": str(tmp_path / "s.json"), "lightdp-total-epsilon": 10.0}
    for run in (b"run number one..", b"run number two.."):
        assert talk.key(0, run=run).has_content()


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


def test_records_are_sent_unclipped_only_if_the_app_says_that_it_clips_them() -> None:
    plan = a_plan(unit="record", clip=0.01, coordinate_range=50.0, epsilon=1e5)
    talk = Talk(an_app(lambda w: w + 3.0), plan)
    talk.grid.run_config["lightdp-record-clip"] = 0.01
    talk.enrol()
    for at in range(3):
        packed = talk.grid.handle(at, talk.start()).content.array_records["arrays"]["lightdp"].numpy().tobytes()
        assert talk.server.receive(packed)
    assert talk.server.close().mean() == pytest.approx(np.full(4, 3.0), abs=0.5)


def test_a_records_part_is_within_the_clip_also_after_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    step = float(np.spacing(np.float32(1)))
    clip, seen = 2 * 499.51 * step, list[np.ndarray]()
    upload = ClientRound.upload

    def watched(self: ClientRound, update: np.ndarray) -> bytes:
        seen.append(update.copy())
        return upload(self, update)

    monkeypatch.setattr(ClientRound, "upload", watched)
    for part in (0.0, clip / 2):  # without a record and with it, whose part of four values has norm clip

        def change(w: np.ndarray, part: float = part) -> np.ndarray:
            return (w + np.float64(part)).astype(np.float32)

        talk = Talk(an_app(change), a_plan(unit="record", clip=clip))
        talk.arrays = ArrayRecord({"w": Array(np.ones(4, np.float32))})
        talk.grid.run_config["lightdp-record-clip"] = clip
        talk.enrol()
        assert talk.grid.handle(0, talk.start()).has_content()
    assert np.linalg.norm(np.full(4, 500 * step)) > clip * 1.0009  # what float32 makes of it
    assert clip * 0.99 < np.linalg.norm(seen[1] - seen[0]) <= clip


# ---- settings and plans ----


def test_settings_have_defaults_and_read_every_name() -> None:
    plain = Settings.of(Context(1, 5, {"partition-id": 3}, RecordDict(), {"lightdp-anything": 1}))
    assert plain == Settings(name="node-5")
    config: dict[str, Any] = {"lightdp-allow-metrics": " loss,, acc ", "lightdp-state": "~/s", "lightdp-name": "me"}
    read = Settings.of(Context(1, 5, {}, RecordDict(), config))
    assert read.allow_metrics == {"loss", "acc"}
    assert read.state is not None
    assert read.state.is_absolute()
    assert read.name == "me"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"calibration": "repair"},
        {"calibration": "repair", "gamma": 2.5, "reserve": "worst"},
        {"calibration": "paper"},
        {"calibration": "local"},
        {"gamma": 0.5, "degree": 2, "graph_seed": 4, "clients": 8, "stragglers": 3},
        {"straggler_law": binomial(1, 3, 0.1), "parameters": 99},
        {"unit": "record", "sampling_rate": 0.1, "records": 300, "coordinate_range": 4.0, "adjacency": "replace"},
    ],
)
def test_a_plan_travels_as_its_arguments(changed: dict[str, Any]) -> None:
    made = a_plan(**changed)
    again = planned(made.to_json())
    assert again.digest() == made.digest()
    assert "sigma" not in made.to_json()


def test_arguments_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="plan must be the arguments"):
        planned("[1, 2]")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"rounds": 2**32, "sampling_rate": 0.5, "delta": 0.1}, "rounds must be <= 1000000 where batches are sampled"),
        ({"stragglers": 2**40, "clients": 2**32 - 2}, "stragglers must be in 0"),
        ({"stragglers": 2**31, "clients": 2**32 - 2}, "straggler_law must cover 0..2147483648, got a law on 0..1"),
    ],
)
@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_plan_that_would_take_the_machines_memory_is_refused(
    asked: dict[str, Any], why: str, calibration: str
) -> None:
    text = json.loads(a_plan(unit="record", calibration=calibration).to_json()) | asked
    text |= {"degree": text["clients"] - 1}
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match=re.escape(why)):
            planned(json.dumps(text))
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_a_plan_whose_clip_or_batches_are_smaller_than_the_apps_is_refused() -> None:
    for changed, why in (
        ({"clip": 0.0099}, "clip=0.0099 is below the app's, lightdp-record-clip=0.01"),
        ({"clip": 0.01, "sampling_rate": 0.1}, "sampling_rate=0.1 is below lightdp-record-rate=0.2"),
    ):
        talk = Talk(plan=a_plan(unit="record", **changed))
        talk.grid.nodes[0].config |= {"lightdp-record-clip": 0.01, "lightdp-record-rate": 0.2}
        talk.grid.run_config |= {"lightdp-record-clip": 1e-6, "lightdp-record-rate": 1e-6}  # as the server would like
        assert refused(talk.key(0), why)
        assert talk.key(1).has_content()
