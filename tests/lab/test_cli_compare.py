from __future__ import annotations

import importlib.util
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len

from lightdp.report._chart import apart
from lightdp_lab.charts.compare import compare_chart
from lightdp_lab.compare_words import figure
from lightdp_lab.schemes import Links, Player, Task
from lightdp_lab.schemes.secagg import SecAggPlus
from support.command_line import assert_refused

if TYPE_CHECKING:
    from types import ModuleType

    from support.command_line import Run

ROOT = Path(__file__).parents[2]
QUICK = ["--clients", "8", "--colluders", "2", "--stragglers", "2", "--dimension", "300", "--rounds-played", "3"]
QUICK += ["--schemes", "plain,local-paper,repair", "--link-failure", "0.1", "--seconds", "5"]
FIGURES = {"trips": 4, "up": 3.2e5, "down": 1e4, "peer": 0.0, "client": 0.05, "server": 0.8, "modelled": 1.5}


def made() -> dict[str, Any]:
    """A record in which every kind of row appears."""
    setting = {
        "clients": 50, "colluders": 10, "stragglers": 10, "dimension": 100_000, "epsilon": 3.0, "delta": 1e-5,
        "rounds": 150, "clip": 1.0, "failure": 0.05, "dropout": 0.01, "uplink": 1e7, "downlink": 5e7, "latency": 0.05,
        "rounds_played": 20, "seconds": 20.0, "cell_seconds": 60.0, "seed": 0, "straggler_law": "binomial:0.05",
    }  # fmt: skip
    rows = []
    for number, (scheme, links) in enumerate(
        [("paper", "any"), ("exact", "any"), ("repair", "any"), ("local-paper", "any"), ("secagg", "relayed"),
         ("secagg", "direct"), ("paillier", "any"), ("ckks", "any"), ("exact-sparse", "any")]
    ):  # fmt: skip
        rows.append(
            {
                "scheme": scheme,
                "title": f"the {scheme} scheme",
                "source": "somebody 2020",
                "private": scheme != "ckks",
                "broken_by": "a hammer",
                "links": links,
                "impossible": None,
                "dimension_played": 100_000,
                "rounds": 20,
                "completed": 3 if links == "direct" else 20,
                "failures": [{"stage": "shares", "why": "31 clients, 40 needed", "count": 12},
                             {"stage": "shares", "why": "30 clients, 40 needed", "count": 5}]
                if links == "direct" else [],
                "epsilon": 9.2367 if scheme == "paper" else 3.0,
                "used": 47.5,
                "noise": 0.2 + number,
                "noise_measured": 0.21 + number,
                "measured": scheme != "paillier",
                "clean": False,
                "degree": {"exact": 49, "exact-sparse": 24}.get(scheme),
                "spent": {"client": 0.04 if scheme == "exact-sparse" else 0.3 if links == "direct" else 0.05,
                          "traffic": 3e6 if links == "direct" else 3.3e5},
                "set_up": {"up": 100.0, "down": 2000.0, "peer": 0.0, "client": 0.1, "server": 0.1, "modelled": 1.0},
                **FIGURES,
            }
        )  # fmt: skip
    rows.append({"scheme": "swiftagg+", "title": "swift", "source": "x", "private": True, "broken_by": "y",
                 "links": "any", "impossible": "no groups"})  # fmt: skip
    scaling = [
        {"scheme": row["scheme"], "clients": clients, "dimension": dimension, "measured": dimension < 1e6, **FIGURES}
        for row in rows[:4]
        for clients, dimension in ((10, 100_000), (50, 100_000), (50, 10_000), (50, 11_000_000))
    ]
    where = {"cpu": "a cpu", "cores": 2, "load": 0.1, "date": "2030-01-02T00:00:00"}
    return {"conditions": where, "setting": setting, "rows": rows, "scaling": scaling}


def test_the_table_fits_120_columns_and_says_what_was_played(run: Run) -> None:
    done = run("compare", *QUICK)
    assert done.code == 0
    assert max(map(cell_len, done.out.splitlines())) <= 120
    for words in (
        "N = 8, C̄ = 2, S̄ = 2, d = 300",
        "by the law binomial:0.1;",
        "FedAvg, no privacy",
        "LightDP, repair",
        "true ε",
        "what broke it",
    ):
        assert words in done.out
    assert "SecAgg" not in done.out


def test_json_is_a_record_that_can_be_shown_and_drawn_again(tmp_path: Path, run: Run) -> None:
    done = run("compare", *QUICK, "--json")
    found = json.loads(done.out)
    assert done.code == 0
    assert [row["scheme"] for row in found["rows"]] == ["plain", "local-paper", "repair"]
    assert found["setting"]["rounds_played"] == found["rows"][0]["rounds"] == 3
    assert found["setting"]["rounds"] == 150
    assert found["setting"]["straggler_law"] == "binomial:0.1"
    (tmp_path / "a.json").write_text(done.out)
    done = run("compare", "--record", tmp_path / "a.json", "--plot", tmp_path / "a.svg")
    assert done.code == 0
    assert "LightDP, repair" in done.out
    assert "LightDP repair" in (tmp_path / "a.svg").read_text()


def test_failures_extrapolation_and_what_cannot_be_had_are_shown(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.json").write_text(json.dumps(made() | {"stopped": True}))
    done = run("compare", "--record", tmp_path / "a.json")
    flat = " ".join(done.out.split())
    assert done.code == 0
    assert max(map(cell_len, done.out.splitlines())) <= 120
    for words in (
        "3/20",
        "shares 17×: 31",
        "3,000 kB",
        "~320",
        "~800",
        "9.24, μ 1.876)",
        "no groups",
        "~: not measured",
        "Interrupted",
    ):
        assert words in flat


def test_the_sheet_draws_every_row_and_dashes_what_was_not_measured() -> None:
    spec = json.dumps(compare_chart(made()).to_dict(), ensure_ascii=False)
    for words in ("the secagg scheme, direct", "Completed rounds", "against N", "against d", "~320 kB", "[4, 4]"):
        assert words in spec.replace("~330 kB", "~320 kB")
    assert "swift" not in spec
    bare = made() | {"scaling": []}
    assert "against N" not in json.dumps(compare_chart(bare).to_dict())


def test_names_beside_lines_stand_apart_and_near_their_place() -> None:
    wanted = [30.0, 31.0, 32.0, 100.0, 101.0, 300.0]
    found = apart(wanted, 400)
    assert all(b - a >= 13 - 1e-9 for a, b in itertools.pairwise(found))
    assert sum(found[:3]) == pytest.approx(sum(wanted[:3]))
    assert found[5] == 300.0
    assert apart([0, 1, 399, 400], 400) == [0, 13, 387, 400]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--schemes", "magic"], "schemes must be one of plain"),
        (["--schemes", "plain,plain"], "schemes must differ"),
        (["--clients", "3", "--colluders", "3"], "colluders must be in 0..2"),
        (["--link-failure", "2"], "link_failure must be in [0, 1]"),
        (["--dropout", "-1"], "dropout must be"),
        (["--uplink", "0"], "uplink must be > 0"),
        (["--rounds-played", "0"], "rounds_played must be"),
        (["--epsilon", "nan"], "epsilon must be finite"),
        (["--dimension", "0"], "dimension must be"),
        (["--straggler-law", "magic"], "straggler_law must be uniform, binomial:P or"),
        (["--plot", "a.pdf"], "plot must end in .html, .png, .svg"),
        (["--plot", "absent/a.svg"], "plot must lie in an existing folder"),
        (["--record", "absent.json"], "record must be what --json wrote"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("compare", *options), words)
    assert list(tmp_path.iterdir()) == []


# the page that is made from a record


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comparison", ROOT / "benchmarks/comparison.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_record_says(maker: ModuleType) -> None:
    text = maker.PAGE.read_text(encoding="utf-8")
    if maker.RECORD.exists():
        assert maker.page(text, json.loads(maker.RECORD.read_text(encoding="utf-8"))) == text


def test_a_page_is_filled_between_its_marks_and_only_there(maker: ModuleType) -> None:
    text = maker.PAGE.read_text(encoding="utf-8")
    filled = maker.page(text, made())
    assert maker.page(filled, made()) == filled
    for words in (
        "| SecAgg + DP | 4.2 to 5.2 | 3 | 15 to 100 % |",
        "| HE + DP | 6.2 to 7.2 | 3 | 100 % | 4 | ~330 |",
        "claimed 3, true 9.24",
        "the secagg scheme 20/20 and 3/20",
        "shares 17×: 31 clients, 40 needed; a sum takes a client 300 ms and 3,000 kB",
        "| the exact-sparse scheme, 24 peers |",
        "--seconds 20 --cell-seconds 60 --seed 0",
        "--link-failure 0.05 --straggler-law binomial:0.05 --scaling --json",
        "is tuned to stragglers by the law binomial:0.05.",
        "d = 11,000,000",
    ):
        assert words in filled
    with pytest.raises(ValueError, match="one block remarks"):
        maker.page(text.replace("begin remarks", "begin regards"), made())


def test_the_remarks_say_by_how_much_our_cheapest_row_is_cheaper_and_at_what_noise(maker: ModuleType) -> None:
    record = made()
    work, noise, lost = maker.cheapest([row for row in record["rows"] if row["impossible"] is None], record)
    assert "least work, the exact-sparse scheme, 24 peers," in work
    assert "work 40 ms, 20 % less than 50 ms (the secagg scheme, relayed)" in work
    assert "traffic 330 kB, 1 times 330 kB" in work
    assert "noise 8.2, 1.95 times 4.2 (the secagg scheme, relayed). It has the least work of all." in work
    assert "least noise, the exact scheme, 49 peers," in noise
    assert noise.endswith("None of its costs is the least.")
    assert "the secagg scheme, direct 3/20, 50 ms a round and 300 ms a sum" in lost


def test_the_remarks_say_where_in_d_another_scheme_takes_less_work(maker: ModuleType) -> None:
    record = made()
    record["scaling"] = [
        {"scheme": scheme, "clients": clients, "dimension": dimension, "measured": True, **FIGURES, "client": client}
        for scheme, clients, dimension, client in (
            ("exact", 50, 10_000, 0.001), ("secagg", 50, 10_000, 0.004),
            ("exact", 50, 1_000_000, 0.09), ("secagg", 50, 1_000_000, 0.03), ("paper", 50, 1_000_000, 0.01),
            ("exact", 10, 77, 0.01), ("secagg", 10, 77, 0.02),
        )
    ]  # fmt: skip
    said = maker.cheapest(record["rows"][:-1], record)[-1]
    assert "d = 10,000: the exact scheme 1 ms, 75 % less than 4 ms (the secagg scheme)" in said
    assert "d = 1,000,000: the exact scheme 90 ms, 3 times 30 ms (the secagg scheme)" in said
    assert "d = 77" not in said


def test_the_remarks_say_what_secagg_plus_sends_in_our_steps_as_it_does_when_played_so(maker: ModuleType) -> None:
    class Coarse(SecAggPlus):
        steps = 2

    task = Task(clients=12, colluders=2, stragglers=2, dimension=4000)
    fine, coarse = (Player(kind, task, Links()) for kind in (SecAggPlus, Coarse))
    row, played = (player.round().cost for player in (fine, coarse))
    sent = (played.up + played.down + played.peer) / 1e3
    about = {"title": "a", "links": "any", "noise": fine.scheme.noise(12), "used": 12}
    ours = about | {"title": "b", "up": 3000.0, "down": 0.0, "peer": 0.0, "noise": 0.25}
    said = maker.coarser(about | {key: getattr(row, key) for key in ("up", "down", "peer")}, ours, asdict(task))
    assert f"a would send and get about {figure(sent)} kB at noise {figure(coarse.scheme.noise(12))};" in said
    assert f"b has 3 kB, {3 / sent:.3g} times as much, at noise 0.25." in said
    assert figure(row.up / 1e3) not in said


def test_the_remarks_say_what_passes_and_what_rivals_would_send_where_the_record_has_it(maker: ModuleType) -> None:
    record = made()
    rows = record["rows"][:-1]
    before = maker.remarks(rows, record)
    for scheme in ("dordis", "secagg+"):
        rows.append(rows[4] | {"scheme": scheme, "title": f"the {scheme} scheme", "noise": 0.5})
    rows[2]["passing"] = 3.25
    said = [line for line in maker.remarks(rows, record) if line not in before]
    assert any("a mean also holds noise of variance 3.25" in line for line in said)
    assert any("Dordis leaves noise of 0.5, in 4 trips" in line for line in said)
    assert any("the secagg+ scheme, relayed would send and get about" in line for line in said)
    assert not any("passes" in line or "Dordis" in line or "rounds to" in line for line in before)


def test_no_sentence_stands_on_numbers_that_a_record_does_not_have(maker: ModuleType) -> None:
    record = made()
    for row in record["rows"]:
        row.pop("spent", None)
    assert maker.cheapest([row for row in record["rows"] if row["impossible"] is None], record) == []
