"""The settings of a node: its operator's, which a server may tighten, and those of a simulation, which has none."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from lightdp.errors import ArgumentError
from lightdp.flower import _settings
from lightdp.flower._settings import Settings
from support.flower_grid import LIMITS
from support.flower_talk import Talk, a_plan, an_app, refused

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = {"partition-id": 3, "num-partitions": 10}


def read(own: dict[str, Any], run: dict[str, Any] | None = None) -> Settings:
    return Settings.of(Context(1, 5, own, RecordDict(), {} if run is None else run))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the simulation engine; the real one is in test_flower_simulation.py."""
    monkeypatch.setattr(_settings, "_in_ray", lambda: True)


def test_every_name_is_read_and_others_are_the_apps() -> None:
    config = {"lightdp-allow-metrics": " loss,, acc ", "lightdp-state": "~/s", "lightdp-name": "me", "slow": 1}
    found = read(LIMITS | config, {"lr": 0.1})
    assert found.allow_metrics == {"loss", "acc"}
    assert found.state is not None
    assert found.state.is_absolute()
    assert (found.name, found.unit, found.max_epsilon, found.max_delta) == ("me", "client", 1e9, 0.5)
    assert read(LIMITS).name == "node-5"


@pytest.mark.parametrize("left_out", sorted(LIMITS))
def test_a_node_whose_operator_has_not_said_what_it_accepts_accepts_nothing(left_out: str) -> None:
    for run in ({}, {left_out: LIMITS[left_out]}):
        if run and left_out in ("lightdp-unit", "lightdp-state"):
            continue
        with pytest.raises(ArgumentError, match=f"node_config must have {left_out}, which operators set; .*engine"):
            read({key: value for key, value in LIMITS.items() if key != left_out}, run)


@pytest.mark.parametrize(
    ("key", "own", "tighter", "looser"),
    [
        ("max_epsilon", 4.0, 3.0, 5.0),
        ("max_delta", 1e-5, 1e-6, 1e-4),
        ("min_colluders", 4, 5, 3),
        ("max_stragglers", 4, 3, 5),
        ("max_rounds", 4, 3, 5),
        ("masks", "any", "gaussian", "any"),
        ("masks", "gaussian", "gaussian", "any"),
        ("allow_metrics", "loss,accuracy", "loss,other", "loss,accuracy,other"),
    ],
)
def test_run_config_tightens_limits_and_never_loosens_them(key: str, own: Any, tighter: Any, looser: Any) -> None:
    name = "lightdp-" + key.replace("_", "-")
    alone = read(LIMITS | {name: own})
    assert read(LIMITS | {name: own}, {name: looser}) == alone
    tight = read(LIMITS | {name: own}, {name: tighter})
    assert getattr(tight, key) == ({"loss"} if key == "allow_metrics" else tighter)
    if name not in LIMITS:
        without = getattr(read(LIMITS, {name: tighter}), key)
        assert without == (frozenset() if key == "allow_metrics" else tighter)


def test_every_other_key_of_run_config_is_refused_with_the_place_where_it_belongs(tmp_path: Path) -> None:
    tighten = {"max_epsilon", "max_delta", "min_colluders", "max_stragglers", "max_rounds", "allow_metrics", "masks"}
    others = [each.name for each in fields(Settings) if each.name not in tighten]
    assert {"state", "pins", "identity", "unit", "adjacency", "record_clip", "record_rate"} < set(others)
    for name in others:
        key = "lightdp-" + name.replace("_", "-")
        with pytest.raises(ArgumentError, match=rf"run_config must not have \['{key}'\]: they belong in node_config"):
            read(LIMITS, {key: str(tmp_path)})
    with pytest.raises(ArgumentError, match=r"run_config must not have \['lightdp-max-eps'\]; known are"):
        read(LIMITS, {"lightdp-max-eps": 1.0})


def test_a_server_cannot_say_to_what_norm_a_node_clips_and_read_a_raw_update() -> None:
    secret = np.array([0.123456789, -3.25, 17.0, 0.5])
    plan = a_plan(unit="record", stragglers=0, rounds=1, clip=1e-4, coordinate_range=20.0, gamma=0.0)
    talk = Talk(an_app(lambda w: w + secret), plan)
    node = talk.grid.nodes[0]
    node.config |= {"lightdp-unit": "record", "lightdp-max-epsilon": 8.0, "lightdp-max-delta": 1e-5}
    talk.grid.run_config |= {"lightdp-record-clip": 1e-4}
    assert refused(talk.key(0), "run_config must not have ['lightdp-record-clip']")
    talk.grid.run_config.clear()
    assert refused(talk.key(0), "lightdp-record-clip must say")
    node.config["lightdp-record-clip"] = 1e-4
    assert refused(talk.key(0), "it needs lightdp.flower.record_mod")
    talk.grid.run_config |= {"lightdp-allow-metrics": "loss,num-examples"}
    node.config |= {"lightdp-unit": "client"}
    talk = Talk()
    talk.grid.run_config |= {"lightdp-allow-metrics": "loss,num-examples"}
    talk.enrol()
    assert dict(talk.grid.handle(0, talk.start()).content.metric_records["metrics"]) == {}


def test_paths_that_no_key_names_are_left_out_of_messages_too() -> None:
    node = Context(1, 5, LIMITS | {"lightdp-state": "/srv/link"}, RecordDict(), {})
    text = (
        "lightdp/argument: '/srv/link/me.json' is /mnt/ward-7/me.json; delta must be < 1/records, see ~/notes, and/or"
    )
    wanted = "lightdp/argument: '<lightdp-state>/me.json' is <path>; delta must be < 1/records, see <path>, and/or"
    assert _settings.without_paths(text, node) == wanted


# ---- simulations ----


@pytest.mark.usefixtures("engine")
def test_in_a_simulation_run_config_says_everything_and_nothing_is_required(tmp_path: Path) -> None:
    assert read(ENGINE, {"lightdp-simulation": True}) == Settings(name="node-5")
    run = {"lightdp-simulation": True, "lightdp-record-clip": 0.5, "lightdp-state": str(tmp_path / "s")}
    assert read(ENGINE, run) == Settings(name="node-5", record_clip=0.5, state=tmp_path / "s")
    with pytest.raises(ArgumentError, match=r"node_config must have lightdp-unit.*says lightdp-simulation=true"):
        read(ENGINE, {"lightdp-simulation": False})
    with pytest.raises(ArgumentError, match="lightdp-simulation must be true or false, got lightdp-simulation=1"):
        read(ENGINE, {"lightdp-simulation": 1})


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("more", [LIMITS, {"lightdp-name": "me"}, {"data": "/a/file"}])
def test_a_node_whose_operator_has_set_anything_is_no_simulation(more: dict[str, Any]) -> None:
    for own in (ENGINE | more, more, {}):
        with pytest.raises(ArgumentError, match="must not be true on a node outside Flower's simulation engine"):
            read(own, {"lightdp-simulation": True})


def test_a_process_outside_the_engine_is_no_simulation_whatever_its_node_config() -> None:
    talk = Talk()
    talk.grid.nodes[0].config = dict(ENGINE)
    talk.grid.run_config |= {"lightdp-simulation": True}
    assert refused(talk.key(0), "must not be true on a node outside Flower's simulation engine")
