from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lightdp
from lightdp import cli, design, stragglers, stream
from lightdp._check import BudgetError

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., "Result"]

EXAMPLE = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}
KEYS = [
    "calibration",
    "gamma",
    "sigma_individual",
    "sigma_pairwise",
    "sigma_effective",
    "noise_multiplier",
    "epsilon",
    "delta",
    "epsilon_claimed",
    "rounds",
    "noise_in_mean",
    "sensitivity",
    "unit",
    "adjacency",
]
SCHEMES = ["central", "smpc", "repair", "exact", "paper", "local"]
MIXED = ["--colluders", "10", "--rounds", "150", "--delta", "1e-5"]


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`lightdp` with these arguments, in this process."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["lightdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return Result(ended.value.code or 0, captured.out, captured.err)

    return call


def plan_arguments(**changes: object) -> list[str]:
    return ["plan", *(f"--{name.replace('_', '-')}={value}" for name, value in (EXAMPLE | changes).items())]


def installed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The console script as users start it."""
    command = [str(Path(sys.executable).with_name("lightdp")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def assert_refused(result: Result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


# The page


def test_the_example_prints_its_page(run: Run) -> None:
    result = run(*plan_arguments())
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{lightdp.plan(**EXAMPLE)}\n"  # type: ignore[arg-type]
    for figure in ("σ_U 4.98014", "σ_K 3.06131", "γ = σ_K²/σ_U² = 0.37786", "17.0312", "ε = 3.0000", "variance 1.647"):
        assert figure in result.out
    for head in ("Guarantee", "Against", "Stragglers", "Noise", "Accuracy", "Upload", "Keys", "Masks"):
        assert f"\n{head}" in result.out


def test_the_installed_command_prints_the_same_page(run: Run) -> None:
    done = installed(*plan_arguments())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(*plan_arguments()).out


def test_the_installed_command_refuses_in_one_line() -> None:
    done = installed(*plan_arguments(epsilon="nan"))
    assert_refused(Result(done.returncode, done.stdout, done.stderr), "epsilon", "nan")


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.code == 0
    assert result.out.startswith("lightdp 0.")


@pytest.mark.parametrize("command", [["plan"], ["plan-mixed"], ["bench", "masks"]])
def test_help_shows_examples(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert result.out.count(f"lightdp {' '.join(command)} ") >= 2  # in the usage and in an example


# Options


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"calibration": "repair"}, {"calibration": "repair"}),
        (
            {"calibration": "repair", "reserve": "worst", "late": "unseen"},
            {"calibration": "repair", "reserve": "worst", "late": "unseen"},
        ),
        ({"gamma": 3}, {"gamma": 3.0}),
        ({"unit": "client", "adjacency": "replace", "clip": 2}, {"unit": "client", "adjacency": "replace", "clip": 2}),
        ({"graph": "circulant:20"}, {"degree": 20}),
        ({"graph": "circulant:20:7"}, {"degree": 20, "graph_seed": 7}),
        ({"straggler_law": "binomial:0.05"}, {"straggler_law": stragglers.binomial(10, 50, 0.05)}),
        ({"straggler_law": "pmf:0.5,0.25,0.25"}, {"straggler_law": stragglers.custom(10, [0.5, 0.25, 0.25])}),
        (
            {"records": 5000, "parameters": 10**6, "coordinate_range": 0.5},
            {"records": 5000, "parameters": 10**6, "coordinate_range": 0.5},
        ),
        ({"sampling_rate": 0.01, "rounds": 20}, {"sampling_rate": 0.01, "rounds": 20}),
    ],
)
def test_options_reach_the_plan(run: Run, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    result = run(*plan_arguments(**changes), "--json")
    assert json.loads(result.out) == lightdp.plan(**(EXAMPLE | settings)).to_dict()


# JSON


@pytest.mark.parametrize("calibration", ["exact", "repair", "paper", "local", "smpc", "central"])
@pytest.mark.parametrize("compare", [False, True])
def test_json_has_every_key_with_the_value_of_the_plan(run: Run, calibration: str, compare: bool) -> None:
    result = run(*plan_arguments(calibration=calibration), "--json", *(["--compare"] if compare else []))
    found = json.loads(result.out)
    expected = lightdp.plan(**EXAMPLE, calibration=calibration)  # type: ignore[arg-type]
    assert (result.code, result.err) == (0, "")
    assert set(KEYS) <= set(found)
    for key in KEYS:
        value = getattr(expected, key)
        assert found[key] == (value() if callable(value) else value), key
    assert ("compare" in found) == compare


def test_json_holds_the_reference_values(run: Run) -> None:
    found = json.loads(run(*plan_arguments(), "--json").out)
    assert found["sigma_individual"] == pytest.approx(4.98014, abs=5e-6)
    assert found["gamma"] == pytest.approx(0.377860, abs=5e-7)
    assert found["epsilon"] == pytest.approx(3, abs=1e-6)
    assert found["epsilon"] <= 3
    assert (found["calibration"], found["unit"], found["adjacency"]) == ("exact", "record", "add-remove")
    assert (found["rounds"], found["delta"], found["epsilon_claimed"], found["sensitivity"]) == (150, 1e-5, 3.0, 1.0)


def test_json_of_the_paper_tells_claimed_from_true(run: Run) -> None:
    found = json.loads(run(*plan_arguments(calibration="paper"), "--json").out)
    assert found["epsilon_claimed"] == 3
    assert found["epsilon"] == pytest.approx(9.2376, abs=5e-5)


def test_json_of_a_comparison_marks_the_impossible(run: Run) -> None:
    rows = json.loads(run(*plan_arguments(colluders=45), "--json", "--compare").out)["compare"]
    assert [row["scheme"] for row in rows] == SCHEMES
    assert {row["scheme"]: row["impossible"] is None for row in rows} == dict.fromkeys(SCHEMES, True) | {"smpc": False}
    assert {row["scheme"]: row["noise_in_mean"] is None for row in rows}["smpc"]


# Tables


def test_compare_prints_every_scheme_with_its_noise(run: Run) -> None:
    result = run(*plan_arguments(), "--compare")
    rows = design.compare(lightdp.plan(**EXAMPLE))  # type: ignore[arg-type]
    table = result.out.split("The same true guarantee")[1]
    assert len(rows) == 6
    for row in rows:
        line = next(line for line in table.splitlines() if row.scheme.title in line)
        assert f" {row.noise_in_mean:.4g} " in line
    assert "impossible" not in table


@pytest.mark.parametrize(
    ("changes", "title", "reason"),
    [
        ({"colluders": 45}, "SMPC + DP", "50 <= 45 + 10"),
        ({"graph": "circulant:20"}, "LightDP, paper's γ", "degree=20"),
    ],
)
def test_compare_marks_impossible_schemes(run: Run, changes: dict[str, Any], title: str, reason: str) -> None:
    table = run(*plan_arguments(**changes), "--compare").out.split("The same true guarantee")[1]
    marked = [line for line in table.splitlines() if "impossible" in line]
    assert len(marked) == 1
    assert title in marked[0]
    assert reason in " ".join(table.split())


def test_paper_prints_claimed_and_true_epsilon(run: Run) -> None:
    table = run(*plan_arguments(calibration="paper")).out.split("claimed and true")[1]
    for line, figures in zip(
        (line for line in table.splitlines() if "round" in line and "ε" not in line),
        (("1", "3", "2.1536"), ("150", "3", "48.7565"), ("150", "3", "9.2376"), ("150", "3", "2.1536")),
        strict=True,
    ):
        assert tuple(line.split()[-3:]) == figures


def test_exact_prints_no_claims(run: Run) -> None:
    assert "claim" not in run(*plan_arguments()).out


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colluders": 50}, ["colluders=50", "0..49"]),
        ({"colluders": -1}, ["colluders=-1"]),
        ({"stragglers": 49}, ["stragglers=49", "0..48"]),
        ({"stragglers": 49, "straggler_law": "pmf:1"}, ["stragglers=49"]),
        ({"stragglers": 51, "straggler_law": "binomial:0.1"}, ["stragglers=51"]),
        ({"clients": 1, "colluders": 0, "stragglers": 0}, ["clients=1"]),
        ({"rounds": 0}, ["rounds=0"]),
        ({"epsilon": 0}, ["epsilon=0"]),
        ({"epsilon": -3}, ["epsilon=-3"]),
        ({"epsilon": "nan"}, ["epsilon=nan"]),
        ({"epsilon": "inf"}, ["epsilon=inf"]),
        ({"delta": 0}, ["delta=0", "(0, 1)"]),
        ({"delta": 1}, ["delta=1"]),
        ({"delta": -1e-5}, ["delta=-1e-05"]),
        ({"delta": "nan"}, ["delta=nan"]),
        ({"delta": 0.01, "records": 100}, ["delta=0.01", "1/records = 0.01"]),
        ({"delta": 0.02, "records": 100}, ["delta=0.02"]),
        ({"records": 0}, ["records=0"]),
        ({"clip": 0}, ["clip=0"]),
        ({"clip": "nan"}, ["clip=nan"]),
        ({"gamma": "nan"}, ["gamma=nan"]),
        ({"gamma": -1}, ["gamma=-1"]),
        ({"gamma": 1, "calibration": "paper"}, ["gamma", "calibration='paper'"]),
        ({"sampling_rate": 0}, ["sampling_rate=0"]),
        ({"sampling_rate": "nan"}, ["sampling_rate=nan"]),
        ({"sampling_rate": 0.5, "unit": "client"}, ["sampling_rate=0.5"]),
        ({"parameters": 0}, ["parameters=0"]),
        ({"coordinate_range": 0}, ["coordinate_range=0"]),
        ({"calibration": "smpc", "colluders": 45}, ["smpc", "50 <= 45 + 10"]),
        ({"calibration": "paper", "graph": "circulant:20"}, ["degree=20"]),
        ({"straggler_law": "pmf:0.5,0.4"}, ["sum of 0.9", "straggler_law='pmf:0.5,0.4'"]),
        ({"straggler_law": "pmf:0.5,nan"}, ["straggler_law='pmf:0.5,nan'"]),
        ({"straggler_law": "pmf:1.5,-0.5"}, ["straggler_law='pmf:1.5,-0.5'"]),
        ({"straggler_law": "pmf:" + ",".join(["0"] * 11 + ["1"])}, ["1 to 11 probabilities"]),
        ({"straggler_law": "pmf:"}, ["straggler_law='pmf:'"]),
        ({"straggler_law": "binomial:1.5"}, ["1.5", "straggler_law='binomial:1.5'"]),
        ({"straggler_law": "binomial"}, ["straggler_law='binomial'"]),
        ({"straggler_law": "binomial:x"}, ["straggler_law='binomial:x'"]),
        ({"straggler_law": "poisson:3"}, ["straggler_law='poisson:3'"]),
        ({"graph": "ring"}, ["graph='ring'"]),
        ({"graph": "complete:3"}, ["graph='complete:3'"]),
        ({"graph": "circulant"}, ["graph='circulant'"]),
        ({"graph": "circulant:50"}, ["graph='circulant:50'", "clients=50"]),
        ({"graph": "circulant:-2"}, ["graph='circulant:-2'"]),
        ({"graph": "circulant:4:5:6"}, ["graph='circulant:4:5:6'"]),
        ({"graph": "circulant:4:" + "9" * 5000}, ["graph="]),
        ({"clients": 10**12, "stragglers": 10**12 - 2}, ["clients must be in 2..4294967294"]),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json", "--compare"]], ids=["page", "json"])
def test_impossible_plans_end_in_one_line(
    run: Run, changes: dict[str, Any], words: list[str], options: list[str]
) -> None:
    assert_refused(run(*plan_arguments(**changes), *options), *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (plan_arguments(calibration="magic"), "magic"),
        (plan_arguments(unit="country"), "country"),
        (plan_arguments(epsilon="three"), "three"),
        (plan_arguments(clients="5.5"), "5.5"),
        (plan_arguments()[:-1], "--delta"),
        ([*plan_arguments(), "--colour"], "--colour"),
        (["train"], "train"),
        (["bench", "--dimension"], "--dimension"),
    ],
)
def test_usage_errors_exit_with_2_and_print_nothing_on_stdout(run: Run, arguments: list[str], word: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert word in result.err
    assert "Traceback" not in result.err


def test_every_error_of_ours_ends_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise BudgetError("no budget left")

    monkeypatch.setattr(design, "plan", refuse)
    assert_refused(run(*plan_arguments()), "no budget left")


def test_ctrl_c_exits_with_130_and_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(design, "plan", interrupt)
    result = run(*plan_arguments())
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err


def test_a_crash_shows_no_local_variables() -> None:
    """They may be keys."""
    code = "import sys; from lightdp import cli, design; design.plan = None; secret = 'x'; cli.main()"
    done = subprocess.run([sys.executable, "-c", code, *plan_arguments()], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TypeError" in done.stderr
    assert "locals" not in done.stderr
    assert "clients = 50" not in done.stderr


# Plots


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def small(**changes: object) -> list[str]:
    return plan_arguments(**({"clients": 8, "colluders": 2, "stragglers": 2} | changes))


@pytest.mark.parametrize(
    ("suffix", "start", "size"),
    [("html", b"<!DOCTYPE html>", 200_000), ("png", b"\x89PNG\r\n\x1a\n", 20_000), ("svg", b"<svg", 5_000)],
)
def test_plot_writes_one_whole_file(run: Run, tmp_path: Path, suffix: str, start: bytes, size: int) -> None:
    file = tmp_path / f"plan.{suffix}"
    file.write_bytes(b"old")
    result = run(*small(), "--plot", file)
    content = file.read_bytes()
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"\nwrote {file}\n")
    assert content.lstrip().startswith(start)
    assert len(content) > size
    assert names(tmp_path) == [file.name]


def test_html_needs_no_network(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    run(*small(), "--plot", file)
    text = file.read_text(encoding="utf-8")
    assert 'src="http' not in text
    assert "https://cdn" not in text
    assert "LightDP repair" in text


def test_plot_with_json_prints_json_only(run: Run, tmp_path: Path) -> None:
    result = run(*small(), "--plot", tmp_path / "plan.svg", "--json")
    assert json.loads(result.out)["clients"] == 8


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.html.txt"])
def test_plot_refuses_other_suffixes(run: Run, tmp_path: Path, name: str) -> None:
    assert_refused(run(*small(), "--plot", tmp_path / name), "plot must end in", name)
    assert names(tmp_path) == []


def test_plot_refuses_a_missing_folder(run: Run, tmp_path: Path) -> None:
    assert_refused(run(*small(), "--plot", tmp_path / "none" / "plan.html"), "plot", "none/plan.html")
    assert names(tmp_path) == []


def test_plot_refuses_a_folder_as_its_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.html").mkdir()
    assert_refused(run(*small(), "--plot", tmp_path / "plan.html"), "plot", "plan.html")
    assert names(tmp_path) == ["plan.html"]


def test_an_infeasible_plan_leaves_no_plot(run: Run, tmp_path: Path) -> None:
    assert_refused(run(*small(epsilon=0), "--plot", tmp_path / "plan.html"), "epsilon=0")
    assert names(tmp_path) == []


def test_plot_without_its_extra_names_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lightdp.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    assert_refused(run(*small(), "--plot", tmp_path / "plan.html"), "lightdp-fl[report]")
    assert names(tmp_path) == []


# Mixed clients


@pytest.fixture
def kinds(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "kinds.csv"
        file.write_text(text, encoding="utf-8")
        return file

    return write


HEAD = "clients,straggling,epsilon\n"


def test_mixed_prints_a_line_per_kind(run: Run, kinds: Callable[[str], Path]) -> None:
    result = run("plan-mixed", kinds(f"{HEAD}40,0.02,3\n10,0.5,3\n"), *MIXED)
    assert (result.code, result.err) == (0, "")
    assert "50 clients of 2 kinds, 150 rounds" in result.out
    lines = [line.split() for line in result.out.splitlines()]
    first, second = (
        next(line for line in lines if line[:3] == kind) for kind in (["1", "40", "0.02"], ["2", "10", "0.5"])
    )
    assert (first[3], second[3]) == ("3.0000", "3.0000")
    assert float(first[4]) < float(second[4])  # σ_U: the flaky ones carry their own noise
    assert first[7] == second[6]  # σ_K is shared
    assert "times as much" in result.out


def test_mixed_json_agrees_with_the_design(run: Run, kinds: Callable[[str], Path]) -> None:
    found = json.loads(
        run("plan-mixed", kinds(f"\ufeff{HEAD}4,0.02,3\n2,0.5,5\n"), *MIXED[2:], "--colluders=1", "--json").out
    )
    expected = design.plan_per_client(
        epsilons=[3] * 4 + [5] * 2, straggling=[0.02] * 4 + [0.5] * 2, colluders=1, rounds=150, delta=1e-5
    )
    assert found == expected.to_dict()


def test_mixed_shows_no_noise_of_a_single_client_with_itself(run: Run, kinds: Callable[[str], Path]) -> None:
    result = run("plan-mixed", kinds(f"{HEAD}1,0.2,3\n5,0.1,3\n"), *MIXED[2:], "--colluders=1")
    lines = [line.split() for line in result.out.splitlines()]
    assert len(next(line for line in lines if line[:3] == ["1", "1", "0.2"])) == 7
    assert len(next(line for line in lines if line[:3] == ["2", "5", "0.1"])) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["kinds.csv"]),
        (HEAD, ["kinds.csv"]),
        ("clients,epsilon\n5,3\n", ["kinds.csv", "straggling"]),
        (f"{HEAD}5,often,3\n", ["kinds.csv", "straggling"]),
        (f"{HEAD}5,0.1,3\n5,0.1\n", ["kinds.csv", "kind 2"]),
        (f"{HEAD}2.5,0.1,3\n", ["kinds.csv", "kind 1"]),
        (f"{HEAD}-5,0.1,3\n50,0.1,3\n", ["clients of kind 1", "-5"]),
        (f"{HEAD}50,0.1,3\n0,0.1,3\n", ["clients of kind 2", "=0"]),
        (f"{HEAD}1000000000000,0.1,3\n", ["clients of kind 1", "1000000000000"]),
        (f"{HEAD}50,0.1,nan\n", ["epsilons=nan"]),
        (f"{HEAD}50,0.1,0\n", ["epsilons=0"]),
        (f"{HEAD}50,1,3\n", ["straggling=1"]),
        (f"{HEAD}50,nan,3\n", ["straggling=nan"]),
        (f"{HEAD}10,0.1,3\n", ["colluders=10"]),
        (f"{HEAD}50,{'1' * 200_000},3\n", ["kinds.csv", "field larger"]),
    ],
)
def test_malformed_kinds_end_in_one_line(run: Run, kinds: Callable[[str], Path], text: str, words: list[str]) -> None:
    assert_refused(run("plan-mixed", kinds(text), *MIXED), *words)


def test_files_that_cannot_be_read_end_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"clients\xff")
    assert_refused(run("plan-mixed", tmp_path / "none.csv", *MIXED), "none.csv", "No such file")
    assert_refused(run("plan-mixed", tmp_path, *MIXED), str(tmp_path), "directory")
    assert_refused(run("plan-mixed", tmp_path / "latin.csv", *MIXED), "latin.csv")


def test_mixed_without_its_extra_names_it(
    run: Run, kinds: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    assert_refused(run("plan-mixed", kinds(f"{HEAD}50,0.1,3\n"), *MIXED), "lightdp-fl[design]")


# Benchmarks

QUICK = ["bench", "masks", "--dimension", "20000", "--peers", "3", "--rounds", "1"]


def test_bench_masks_records_every_method_and_the_path_in_use(run: Run) -> None:
    result = run(*QUICK, "--json")
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert set(found) == {"rates", "client_round", "peak_memory_in_vectors"}
    path = stream.backend().split()[0]
    assert {"philox", "uniform", "numpy", path} <= set(found["rates"]["methods"])
    assert set(found["client_round"]["methods"]) == {"philox", "uniform", "upload"}
    for part in (found["rates"], found["client_round"]):
        assert part["conditions"]["backend"] == stream.backend()
        assert (part["d"], part["peers"], part["rounds"]) == (20000, 3, 1)
        for row in part["methods"].values():
            assert row["rate"] == pytest.approx(60000 / row["seconds"])
            assert all(math.isfinite(row[key]) and row[key] > 0 for key in ("seconds", "x_philox", "x_uniform"))
        assert part["methods"]["philox"]["x_philox"] == part["methods"]["uniform"]["x_uniform"] == 1
    if Path("/proc/self/status").exists():
        assert set(found["peak_memory_in_vectors"]) == {"1", "3"}


def test_bench_masks_prints_tables_and_the_path_in_use(run: Run) -> None:
    result = run(*QUICK)
    assert result.code == 0
    assert f"path in use: {stream.backend()}" in result.out
    for word in ("M samples/s", "× Philox", "× AES uniform", "whole round", "lightdp, numpy", "3 masks of 20,000"):
        assert word in result.out


@pytest.mark.parametrize("option", ["dimension", "peers", "rounds"])
def test_bench_masks_refuses_nothing_to_do(run: Run, option: str) -> None:
    assert_refused(run(*QUICK, f"--{option}=0"), f"{option}=0")


def test_bench_masks_refuses_a_path_that_is_not_there() -> None:
    done = installed(*QUICK, LIGHTDP_STREAM="abacus")
    assert_refused(Result(done.returncode, done.stdout, done.stderr), "LIGHTDP_STREAM='abacus'")
