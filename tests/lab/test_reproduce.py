from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightdp import cli, plan
from lightdp.errors import ArgumentError
from lightdp.training import partition
from lightdp.training.config import Config
from lightdp_lab.charts.results import results_charts
from lightdp_lab.differences import differences
from lightdp_lab.page import page
from lightdp_lab.reproduce import PROFILES, TABLES, TARGETS, cells, same, started
from lightdp_lab.results import Results, play, prepared
from lightdp_lab.sensitivity import moved
from lightdp_lab.tables import known, together

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/evidence/results.md"


def reproduce(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["lightdp", "reproduce", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def made_up(config: Config, accuracy: float) -> dict[str, Any]:
    network = {"trips": 4, "time_measured": False, "failed": 7} if config.links is not None else {}
    curve = [[10, accuracy / 2, 3.0], [20, accuracy, 9.0]]
    return network | {
        "config": same(config),
        "accuracy": accuracy,
        "rounds": 150,
        "stopped": None,
        "epsilon": 2.5,
        "epsilon_round": 0.25,
        "noise": 0.1,
        "smallest": 200,
        "curve": curve if network else [point[:2] for point in curve],
        "seconds": 12.0,
        "device": "cpu",
        "versions": {},
        "commit": None,
    }


# the grid


def test_tables_have_the_cells_of_the_paper() -> None:
    for name, table in TABLES.items():
        found = cells(name, "paper", trials=1)
        places = {(c.epsilon, c.colluders, c.stragglers) for c in found}
        assert len(found) == len(places) == 12
        assert {(c.model, c.scheme, c.unit, c.epsilon_per, c.rounds, c.clients) for c in found} == {
            ("resnet18", "paper", "paper", "round", 150, 50)
        }
        assert {getattr(c, table.varies) for c in found} == set(table.values)
        assert all(getattr(c, name) == value for c in found for name, value in table.fixed.items())
        assert all(len(row) == len(table.values) for row in table.printed.values())


def test_every_trial_is_a_seed_of_its_own_and_the_first_trial_of_all_cells_comes_first() -> None:
    found = cells("table2", "repair", trials=3)
    assert [c.seed for c in found] == sorted(c.seed for c in found)
    assert len(found) == len(set(found)) == 3 * len(cells("table2", "repair", trials=1))


def test_secure_aggregation_is_left_out_where_nobody_honest_is_sure_to_come() -> None:
    places = {(c.colluders, c.stragglers) for c in cells("table2", "repair", trials=1) if c.scheme == "smpc"}
    assert places == {(10, 10), (20, 10), (30, 10)}
    assert (40, 10) in {(c.colluders, c.stragglers) for c in cells("table2", "repair", trials=1)}


def test_failing_links_are_compared_in_every_cell_with_ten_stragglers_or_more() -> None:
    found = cells("links", "repair", trials=1)
    assert {c.arrivals for c in found} == {"links:0.05"}
    assert {(c.colluders, c.stragglers) for c in found} == {
        (10, 10), (20, 10), (30, 10), (40, 10), (15, 10), (15, 20), (15, 30),
    }  # fmt: skip


def test_schemes_run_on_both_kinds_of_links_are_those_whose_clients_write_to_each_other() -> None:
    links: dict[str, set[str | None]] = {}
    for config in cells("time", "repair"):
        links.setdefault(config.scheme, set()).add(config.links)
    assert {name for name, found in links.items() if len(found) == 2} == {
        "secagg", "secagg+", "dordis", "lightsecagg", "swiftagg+",
    }  # fmt: skip


def test_more_noise_means_a_smaller_learning_rate_whatever_the_scheme() -> None:
    found = cells("rounds", "repair", trials=1)
    noise = {c: c.plan(50_000, 1, 1).noise_in_mean() for c in found}  # type: ignore[union-attr]
    ordered = sorted(found, key=lambda c: noise[c])
    assert [c.lr for c in ordered] == sorted((c.lr for c in found), reverse=True)
    assert {c.lr for c in found if c.scheme == "repair" and c.epsilon == 3} == {8.0}


@pytest.mark.parametrize(
    ("target", "profile", "options", "message"),
    [
        ("table4", "paper", {}, "target must be one of"),
        ("table2", "best", {}, "profile must be one of"),
        ("table2", "paper", {"model": "wrn"}, "model must be one of resnet18, scattering-linear"),
        ("choices", "repair", {}, "profile must be paper for target='choices', got profile='repair'"),
        ("time", "paper", {}, "profile must be exact or repair for target='time', got profile='paper'"),
        ("table2", "paper", {"trials": 0}, "trials must be"),
    ],
)
def test_what_is_not_there_is_refused(target: Any, profile: Any, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cells(target, profile, **options)


def test_a_kept_config_says_all_but_where_it_ran() -> None:
    for target in TARGETS:
        for profile in PROFILES:
            try:
                found = cells(target, profile, trials=1)
            except ArgumentError:
                continue
            for config in found:
                moved_on = dataclasses.replace(config, data_path="/elsewhere", device="cpu")
                assert same(moved_on) == same(config)
                assert Config(**same(config)) == config


# trials of a cell


def test_trials_of_a_cell_stand_together_with_their_spread(tmp_path: Path) -> None:
    results, configs = Results(tmp_path), cells("table2", "repair", epsilons=(3.0,), schemes=("repair",), trials=2)
    for config in configs:
        if config.colluders != 40:
            results.add(config, made_up(config, 0.6 + 0.02 * config.seed))
    found = together(configs, results)
    assert [cell.config.colluders for cell in found] == [10, 20, 30, 40]
    assert [cell.trials for cell in found] == [2, 2, 2, 0]
    assert found[0].text(count=True) == "61.0 ± 1.4 (2)"
    assert found[3].text() == "–"
    assert found[0].to_dict()["accuracy"] == pytest.approx(0.61)


# a guarantee for each round, and plans that know of failing links


def test_an_epsilon_for_each_round_takes_the_noise_of_one_round_and_no_budget_ends_the_run(tmp_path: Path) -> None:
    common: dict[str, Any] = {"clients": 10, "colluders": 2, "stragglers": 2, "rounds": 6, "epsilon": 1.0}
    config = Config(**common, scheme="exact", epsilon_per="round")
    found, once = config.plan(1000, 1, 1), Config(**common | {"rounds": 1}, scheme="exact").plan(1000, 1, 1)
    assert found is not None
    assert once is not None
    assert found.sigma_individual == once.sigma_individual
    (_, line), *_ = play([config], Results(tmp_path))
    assert line["rounds"] == 6
    assert line["epsilon_round"] == pytest.approx(1.0)
    assert line["epsilon"] > 1.5


def test_a_plan_for_failing_links_reckons_with_few_stragglers() -> None:
    common: dict[str, Any] = {"clients": 50, "colluders": 15, "stragglers": 30, "rounds": 150, "scheme": "repair"}
    failing, uniform = (Config(**common, arrivals=a).plan(1000, 1, 1) for a in ("links:0.05", "uniform"))
    assert failing is not None
    assert uniform is not None
    assert failing.noise_in_mean() < 0.7 * uniform.noise_in_mean()
    assert failing.stragglers == 30
    assert failing.law.mean(lambda s: s) == pytest.approx(2.5, rel=1e-6)


# how far a record moves an update


def test_sensitivity_is_that_of_one_step_by_hand() -> None:
    config = Config(
        data="digits", model="linear", unit="paper", clients=10, batch=10_000, local_lr=0.3, clip=2.0, scheme="none"
    )
    line = moved(config, 3)
    source, *_ = prepared("digits", None, "linear", False, "cpu")
    parts = partition.split(source.train_y, 10, "iid", 0)
    mine = sorted(parts, key=len)[5]
    rng = np.random.default_rng([0, 3])
    others = rng.choice(np.setdiff1d(np.arange(len(source.train_y)), mine), 3, replace=False)
    places = rng.choice(len(mine), 3, replace=False)

    def gradient(record: int) -> np.ndarray[Any, Any]:
        """Of the softmax regression that starts at zero, weights and bias."""
        residual = np.full(10, 0.1) - np.eye(10)[source.train_y[record]]
        return np.outer(residual, np.append(source.train_x[record].ravel(), 1.0))

    steps = [
        0.3 / len(mine) * np.linalg.norm(gradient(int(other)) - gradient(int(mine[place])))
        for other, place in zip(others, places, strict=True)
    ]
    assert line["assumed"] == pytest.approx(2 * 0.3 * 2.0 / len(mine))
    assert line["ratio"]["largest"] == pytest.approx(max(steps) / line["assumed"], rel=1e-4)
    assert line["ratio"]["median"] == pytest.approx(sorted(steps)[1] / line["assumed"], rel=1e-4)


# the page


def test_differences_from_the_paper_are_those_of_the_theory(tmp_path: Path) -> None:
    said = differences(Results(tmp_path)).splitlines()
    assert [line[:5] for line in said] == [f"- P{n}:" for n in range(1, 7)]
    assert "1.866 Δ and the true ε 2.154; 1.391 Δ would do" in said[0]
    assert "claimed 30, true 36.48" in said[1]
    assert "true 9.24 with its footnote and 48.8 without it" in said[2]
    assert "19.7 times less (11.0 times at the same true ε)" in said[5]
    exact = plan(clients=50, colluders=10, stragglers=10, rounds=1, epsilon=3, delta=1e-5)
    rng, weights = np.random.default_rng(0), np.repeat([1.0, 2.0], 25)
    masks = np.triu(rng.normal(0, exact.sigma_pairwise, (4000, 50, 50)), 1)
    left = ((masks - masks.transpose(0, 2, 1)).sum(2) @ weights).var()
    own = (rng.normal(0, exact.sigma_individual, (4000, 50)) @ weights).var()
    ratio = float(re.search(r"leave ([\d.]+) times", said[4])[1])  # type: ignore[index]
    assert ratio == pytest.approx(left / own, rel=0.12)


def test_a_page_shows_kept_runs_and_draws_them(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for target, profile in (("rounds", "repair"), ("links", "repair"), ("time", "repair"), ("rounds", "paper")):
        for config in cells(target, profile, trials=2):  # type: ignore[arg-type]
            if results.find(config) is None:
                results.add(config, made_up(config, 0.7 if config.scheme == "repair" else 0.65))
    for config in started(seeds=(0, 1), schemes=("repair",)):
        results.add(config, made_up(config, 0.75))
    text, two = page(PAGE.read_text(), results), "75.0 ± 0.0 (2)"
    for row in (
        f"| WRN-16-4, LightDP, repair | {two} | – | {two} | – | {two} | – | {two} |",
        "| 3 | 10 | 10 | 70.0 ± 0.0 | 65.0 ± 0.0 | +5.00 ± 0.00 | 2 |",
        "| 3 | 40 | 10 | 70.0 ± 0.0 | impossible |  | 2 |",
        "| SecAgg + DP, direct links | 4 | 7 of 150 | 65.0 ± 0.0 | ~9 |",
        "| scattering + linear, 2 trials | LightDP, repair | 70.0 ± 0.0 | 70.0 ± 0.0 | 70.0 ± 0.0 | -5.0 |",
    ):
        assert row in text
    drawn = results_charts(results)
    assert set(drawn) == {"rounds", "models", "prior", "time", "noise"}
    for name, chart in drawn.items():
        spec = json.dumps(chart.to_dict(), ensure_ascii=False)
        assert "LightDP" in spec
        assert spec.count('"scheme":') > 10 or name in {"models", "prior"}


def test_repair_is_compared_with_secure_aggregation_trial_by_trial(tmp_path: Path) -> None:
    results = Results(tmp_path)
    ahead = {10: (0.01, 0.03), 20: (0.0, 0.00002), 30: (-0.01, -0.02)}  # of repair, by colluders and seed
    for config in cells("table2", "repair", trials=2, epsilons=(3.0,)):
        more = ahead.get(config.colluders, (0.0, 0.0))[config.seed] if config.scheme == "repair" else 0.0
        results.add(config, made_up(config, 0.5 + 0.2 * config.seed + more))
    text = page(PAGE.read_text(), results)
    assert "|  | repair - SMPC + DP ± standard error | +2.00 ± 1.00 | +0.00 ± 0.00 | -1.50 ± 0.50 |  |" in text
    assert (
        "Repair is above SMPC + DP in 1 of 3 cells, level with it in 1, below it in 1 (ε = 3, C̄ = 30, S̄ = 10: -1.50 ± "
        "0.50). The largest difference: ε = 3, C̄ = 10, S̄ = 10: +2.00 ± 1.00.\n"
    ) in text
    assert text.count("Not run.") == 1  # with failing links


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="one block made, got 0"):
        page("no marks", Results(tmp_path))


def test_the_page_of_results_is_what_the_results_say() -> None:
    text = PAGE.read_text()
    assert page(text, Results(ROOT / "results")) == text


# the command


def test_the_quick_table_of_the_paper_prints_every_cell_and_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["table2", "--profile", "paper", "--quick", "--results", tmp_path]
    code, out, err = reproduce(monkeypatch, capsys, *options)
    assert code == 0
    assert f"0 runs read from {tmp_path}, 12 run now\n" in err
    assert len(re.findall(r"^ paper ", out, flags=re.MULTILINE)) == 12
    assert "no theorem bounds it here" in out
    kept = (tmp_path / "quick-cnn.jsonl").read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    accuracies = [line["accuracy"] for line in lines]
    assert len(accuracies) == 12
    assert min(accuracies) > 0.6
    assert [three["noise"] / nine["noise"] for three, nine in zip(lines[:4], lines[8:], strict=True)] == [
        pytest.approx(3, rel=0.05)
    ] * 4
    code, out, err = reproduce(monkeypatch, capsys, *options, "--json", "--no-run")
    assert err == f"12 runs read from {tmp_path}, 0 run now; another --results FOLDER runs all of them\n"
    assert [cell["accuracy"] for cell in json.loads(out)] == accuracies
    assert (tmp_path / "quick-cnn.jsonl").read_text() == kept


def test_mistakes_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["table2", "--epsilon", "three"], "epsilon must be numbers"),
        (["table2", "--schemes", "magic", "--quick"], "schemes must name some of table2's, got schemes='magic'"),
        (["sensitivity", "--profile", "repair", "--quick"], "sensitivity is one of profile='paper'"),
        (
            ["page", "--docs", tmp_path, "--results", ROOT / "results"],
            "docs must be a folder with evidence/results.md and img",
        ),
        (["page", "--results", tmp_path / "none"], "results must be a folder with kept runs, got results="),
        (["page", "--results", PAGE], "results must be a folder, got results="),
    ):
        code, _, err = reproduce(
            monkeypatch, capsys, *(["--results", tmp_path] if arguments[0] != "page" else []), *arguments
        )
        assert code == 2
        assert err.startswith("error: ")
        assert message in err


def test_no_jobs_are_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = reproduce(monkeypatch, capsys, "table2", "--quick", "--jobs", "0", "--results", tmp_path / "new")
    assert (code, err) == (2, "error: jobs must be >= 1, got jobs=0\n")
    assert not (tmp_path / "new").exists()


def test_a_sensitivity_is_kept_and_told_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--model", "scattering-linear", "--results", tmp_path]
    code, out, _ = reproduce(monkeypatch, capsys, "sensitivity", *options)
    assert code == 0
    assert "moves the update of a client by" in out
    assert reproduce(monkeypatch, capsys, "sensitivity", *options)[1] == out
    (line,) = [json.loads(text) for text in (tmp_path / "quick-linear.jsonl").read_text().splitlines()]
    assert Results(tmp_path).sensitivities() == [line]
    assert 0 < line["ratio"]["median"] <= line["ratio"]["largest"]
    assert known(Results(tmp_path), "rounds", "paper")[0].trials == 0


def test_the_help_page_and_the_chart_of_compare_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import lightdp_lab.cli.reproduce, lightdp_lab.charts.compare"
    subprocess.run([sys.executable, "-c", code], check=True)
