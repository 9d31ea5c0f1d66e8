"""The tutorial about own data, executed from its first line to its last, in one folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from lightdp.runlog import RunLog
from lightdp.training import data
from lightdp.training.config import Config
from lightdp.training.fitting import fitted
from support.docs import Reader, blocks

PAGE = Path(__file__).parents[1] / "docs/tutorials/own-data.md"


def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    reader = Reader(PAGE, tmp_path)
    reader.follow()
    clone, printed = reader.clone, reader.printed
    heart, visits = RunLog.read(clone / "run.jsonl"), RunLog.read(clone / "visits.jsonl")
    assert heart.accuracy is not None
    assert visits.accuracy is not None
    assert min(heart.accuracy, visits.accuracy) > 0.7
    assert (heart.unit, visits.unit) == ("record", "person")
    assert visits.outcome.accuracy_clients is not None
    assert sorted(visits.outcome.accuracy_clients) == ["Basel", "Bern", "Chur", "Genf", "Olten"]
    private = RunLog.read(clone / "private.jsonl")
    assert private.outcome.bounds is not None
    before, after = (each.loss for each in private.rounds[:2])
    assert f"here from {before:.3f} to {after:.3f}" in PAGE.read_text(encoding="utf-8")
    shown = ", ".join(f"{name} [{each['low']:g}, {each['high']:g}]" for name, each in private.outcome.bounds.items())
    assert f"`{shown}` here" in PAGE.read_text(encoding="utf-8")
    for page in (printed[1], printed[2], (clone / "visits.html").read_text(encoding="utf-8")):
        assert "for one person" in page
        assert "one record" not in page
    assert RunLog.read(clone / "heart.jsonl").accuracy == heart.accuracy
    shown_classes, shown_shares = _predictions(next(block.text for block in blocks(PAGE, "text")))
    classes, shares = _predictions(printed[3])
    assert shown_classes == classes
    assert np.allclose(shown_shares, shares, atol=1e-3)


def _predictions(text: str) -> tuple[list[str], list[list[float]]]:
    """The header and the classes that `lightdp predict` has printed, and the probabilities."""
    header, *lines = csv.reader(io.StringIO(text))
    return [*header, *(line[0] for line in lines)], [[float(share) for share in line[1:]] for line in lines]


def test_the_table_of_hospitals_is_that_of_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    record = json.loads((PAGE.parents[2] / "benchmarks/records/heart.json").read_text(encoding="utf-8"))
    *rows, flamby = record["rows"]
    for row in rows:
        shares = " | ".join(f"{100 * share:.1f}" for share in row["clients"].values())
        assert f"| {row['name']} | {100 * row['accuracy']:.1f} ± {100 * row['spread']:.1f} % | {shares} |" in page
    assert f"(ours at this ε and δ: {100 * flamby['mean_of_clients']:.1f} %)" in page
    chosen = fitted(Config(data="heart"), data.load("heart"), ["data"])
    assert {"rounds": chosen.rounds, "lr": chosen.lr} == record["chosen"]
