"""Runs that are kept: none is played twice, interrupted ones go on, several go side by side."""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lightdp.errors import ArgumentError
from lightdp.runlog import Line, Round
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.data import Layout
from lightdp_lab.reproduce import FINE, cells, same
from lightdp_lab.results import Results, play, trial

OLDER = dict.fromkeys(  # kept runs are older than tables and than these settings
    ["start", "head_lr", "bounds_rounds", *(field.name for field in dataclasses.fields(Layout))]
)
ROOT = Path(__file__).parents[2]


def test_a_run_is_kept_once_and_an_interrupted_one_goes_on_where_it_stopped(tmp_path: Path) -> None:
    configs = cells("table2", "repair", quick=True, epsilons=(3.0,), schemes=("repair",))[:2]
    whole = [line for _, line in play(configs, Results(tmp_path / "whole"))]

    def interrupt(config: Config, line: Line) -> None:
        if config == configs[1] and isinstance(line, Round) and line.round == 4:
            raise KeyboardInterrupt

    results = Results(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        list(play(configs, results, watch=interrupt))
    assert [results.find(config) is None for config in configs] == [False, True]
    rounds: list[int] = []
    again = Results(tmp_path / "cut")
    played = list(play(configs, again, watch=lambda _, line: rounds.append(getattr(line, "round", 0))))
    assert [config for config, _ in played] == configs[1:]
    for name in ("accuracy", "curve", "epsilon", "noise"):
        assert played[0][1][name] == whole[1][name]
    assert list(play(configs, Results(tmp_path / "cut"))) == []
    assert len((tmp_path / "cut/quick-linear.jsonl").read_text().splitlines()) == 2
    assert list((tmp_path / "cut/.work").iterdir()) == []


def test_a_run_whose_line_nobody_took_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config,) = cells("table2", "repair", quick=True, epsilons=(3.0,), schemes=("repair",))[:1]
    work = tmp_path / ".work"
    work.mkdir()
    line = trial(config, work)  # as a process does whose parent is killed meanwhile
    monkeypatch.setattr(Clients, "updates", None)
    assert list(play([config], Results(tmp_path))) == [(config, line | {"beside": 0})]
    assert list(work.iterdir()) == []


def test_runs_side_by_side_give_what_runs_one_by_one_give(tmp_path: Path) -> None:
    configs = cells("table2", "exact", quick=True, epsilons=(3.0,), schemes=("exact",))[:3]
    one, two = Results(tmp_path / "one"), Results(tmp_path / "two")
    assert len(list(play(configs, one))) == len(list(play(configs, two, jobs=2))) == 3
    for config in configs:
        a, b = one.find(config), two.find(config)
        assert a is not None
        assert b is not None
        assert a["accuracy"] == b["accuracy"]
        assert a["epsilon"] == b["epsilon"]
        assert a["epsilon"] <= 3


@pytest.mark.parametrize("epochs", [1, 10_000])
def test_an_interrupt_ends_runs_side_by_side_at_once_and_they_go_on(tmp_path: Path, epochs: int) -> None:
    short, *_ = cells("table2", "exact", quick=True, epsilons=(3.0,), schemes=("exact",))
    endless: dict[str, Any] = {"rounds": 100_000, "epsilon": 1e9} | (
        {"unit": "client", "epochs": epochs} if epochs > 1 else {}
    )
    long = [dataclasses.replace(short, **endless, seed=seed) for seed in range(3)]
    results = Results(tmp_path)
    before = set(multiprocessing.active_children())
    runs = play([short, *long], results, jobs=2)
    assert next(runs)[0] == short
    while len(list((tmp_path / ".work").glob("*.jsonl"))) < 2:  # until both processes have something to lose
        time.sleep(0.1)
    with pytest.raises(KeyboardInterrupt) as raised:
        runs.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert raised.tb is not None  # held, and with it the frames: nobody but `play` itself ends the processes
    assert set(multiprocessing.active_children()) <= before
    begun = list((tmp_path / ".work").glob("*.jsonl"))
    assert len(begun) == 2
    for path in begun:
        written = json.loads(path.read_text().splitlines()[-1]).get("round", 0)
        packed = path.with_suffix(".checkpoint").read_bytes()[32:]
        kept = torch.load(io.BytesIO(packed), weights_only=True)["state"]["round"]
        assert kept in (written, written - 1)  # a line too many is cut off again
        assert epochs == 1 or written == 0  # nobody waits until a long round is over
    assert [results.find(config) is None for config in (short, *long)] == [False, True, True, True]


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    good = cells("table2", "exact", quick=True, epsilons=(3.0,), schemes=("exact",))[0]
    bad = dataclasses.replace(good, data=str(tmp_path / "missing.npz"))
    results, done = Results(tmp_path), []
    with pytest.raises(ArgumentError, match=r"missing\.npz"):
        done += list(play([bad, good], results, jobs=2))
    assert results.find(good) is not None
    assert results.find(bad) is None


def test_kept_runs_say_every_setting_and_the_seed() -> None:
    paths = sorted((ROOT / "results").glob("*.jsonl"))
    assert paths
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            settings = OLDER | FINE | json.loads(text)["config"]
            settings.pop("replaced", None)  # of sensitivities
            assert same(Config(**settings)) == settings


def test_a_line_older_than_a_setting_is_a_run_without_it(tmp_path: Path) -> None:
    (config,) = cells("table2", "repair", quick=True, epsilons=(3.0,), schemes=("repair",))[:1]
    assert config.late_seen == 0
    old = {name: value for name, value in same(config).items() if name != "late_seen"}
    (tmp_path / "quick-linear.jsonl").write_text(json.dumps({"config": old, "accuracy": 0.5}) + "\n")
    results = Results(tmp_path)
    found = results.find(config)
    assert found is not None
    assert found["config"] == same(config)
    assert results.find(dataclasses.replace(config, late_seen=0.5)) is None


@pytest.mark.parametrize("damaged", ["jsonl", "checkpoint"])
def test_a_damaged_interrupted_run_is_run_anew(tmp_path: Path, damaged: str) -> None:
    (config,) = cells("table2", "repair", quick=True, epsilons=(3.0,), schemes=("repair",))[:1]

    def interrupt(_: Config, line: Line) -> None:
        if isinstance(line, Round) and line.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(play([config], Results(tmp_path), watch=interrupt))
    (path,) = (tmp_path / ".work").glob(f"*.{damaged}")
    path.write_bytes(path.read_bytes()[:-40])
    rounds: list[int] = []
    ((_, line),) = play([config], Results(tmp_path), watch=lambda _, line: rounds.append(getattr(line, "round", 0)))
    assert rounds[:2] == [0, 1]
    assert line["rounds"] == 10


def test_a_file_without_its_last_newline_takes_another_line(tmp_path: Path) -> None:
    one, two = cells("table2", "repair", quick=True, epsilons=(3.0,), schemes=("repair",))[:2]
    results = Results(tmp_path)
    results.add(one, {"config": same(one)})
    path = tmp_path / "quick-linear.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    results.add(two, {"config": same(two)})
    again = Results(tmp_path)
    assert again.find(one) is not None
    assert again.find(two) is not None


def test_lines_that_are_no_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "paper-cnn.jsonl").write_text('{"config": {}}\n{"accuracy": 1}\n')
    with pytest.raises(ArgumentError, match=r"paper-cnn\.jsonl:2"):
        Results(tmp_path)
    (tmp_path / "paper-cnn.jsonl").write_bytes(b'{"config": {}}\n\xff\n')
    with pytest.raises(ArgumentError, match=r"paper-cnn\.jsonl:2"):
        Results(tmp_path)
