from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.errors import ArgumentError
from lightdp.training import data, partition
from lightdp.training.config import Config
from lightdp.training.data import Dataset, Layout, _columns, _table
from lightdp.training.data._own import Owners
from lightdp.training.fitting import fitted
from lightdp.training.simulator import Run
from support.data_files import damaged_or_read

HEART = Path(data.__file__).parent / "heart"


# --- heart ---


def test_heart_has_the_patients_that_flamby_has_and_holds_a_third_of_each_hospital_out() -> None:
    heart = data.load("heart")
    assert heart.train_client is not None
    assert heart.test_client is not None
    train, test = np.bincount(heart.train_client), np.bincount(heart.test_client)
    assert (train + test).tolist() == [303, 261, 46, 130]
    assert test.tolist() == [103, 88, 15, 44]
    y = np.concatenate([heart.train_y, heart.test_y])
    client = np.concatenate([heart.train_client, heart.test_client])
    assert [int(y[client == i].sum()) for i in range(4)] == [139, 98, 45, 101]  # counted in the files by awk
    assert len(data.load("heart", layout=Layout(test_fraction=0.5)).test_y) == 151 + 130 + 23 + 65


def test_heart_is_scaled_by_its_public_bounds_alone() -> None:
    lines = (HEART / "processed.va.data").read_text().splitlines()
    rows = [line.split(",") for line in lines if "?" not in line.split(",")[:10]]
    expected = {round((float(row[0]) - 20) / 30 - 1, 5) for row in rows}
    heart = data.load("heart")
    x, client = np.concatenate([heart.train_x, heart.test_x]), np.concatenate([heart.train_client, heart.test_client])
    assert {round(float(age), 5) for age in x[client == 3, 0]} == expected
    assert x.shape[1] == 5 + 2 + 4 + 2 + 3 + 2
    assert np.abs(x).max() == 1


def test_the_files_of_heart_are_unchanged_and_attributed() -> None:
    sizes = {"cleveland": 18461, "hungarian": 10263, "switzerland": 4109, "va": 6737}  # as published
    for name, size in sizes.items():
        assert (HEART / f"processed.{name}.data").stat().st_size == size
    said = (HEART / "ATTRIBUTION.md").read_text()
    for words in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano", "CC BY 4.0", "creativecommons.org/licenses/by/4.0"):
        assert words in said


# --- columns ---


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e9, 1e9))
def test_a_number_is_scaled_between_its_bounds(one: float, other: float, value: float) -> None:
    low, high = min(one, other), max(one, other) + 1
    (found,) = _columns.Number("a", low, high).features(np.array([value]))
    expected = -1 if value <= low else 1 if value >= high else ((value - low) - (high - value)) / (high - low)
    assert found[0] == pytest.approx(expected, abs=1e-6)
    assert -1 <= found[0] <= 1


def test_missing_cells_are_the_middle_and_shown_where_asked() -> None:
    cells = np.array(["20", " ?", "", "NA", "nan", "80"], dtype=object)
    plain, shown = (_columns.Number("a", 20, 80, shows).features(cells) for shows in (False, True))
    assert plain.ravel().tolist() == [-1, 0, 0, 0, 0, 1]
    assert shown.tolist() == [[-1, 0], [0, 1], [0, 1], [0, 1], [0, 1], [1, 0]]
    category = _columns.Category("c", ("NA", "3"), shows_missing=True)
    found = category.features(np.array(["3.0", "NA", "?", "4", " 3 "], dtype=object))
    assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    "cells",
    [np.array([1, 2, 1]), np.array([1.0, 2.0, 1.0]), np.array(["1", "2", "1"]), np.array(["1", 2, 1.0], dtype=object)],
)
def test_cells_of_every_kind_are_the_same_categories(cells: Any) -> None:
    assert _columns.Category("c", ("1", "2")).places(cells).tolist() == [0, 1, 0]
    assert _table.texts(cells) == ["1", "2", "1"]


def test_long_identifiers_stay_apart() -> None:
    assert len(set(_table.texts(np.array([2**60, 2**60 + 1])))) == 2


# --- damage ---

GOOD = b"who;site;age;sick\n" + b"".join(b"p%d;s%d;%d.5;%d\n" % (i // 2, i // 2 % 3, 30 + i, i % 2) for i in range(40))


@given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
def test_damage_of_a_table_ends_in_one_line_or_is_read(where: int, flip: int, cut: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table, columns = Path(folder) / "t.csv", Path(folder) / "columns.toml"
        columns.write_text("age = [0, 100]")
        layout = Layout(label="sick", client_column="site", person_column="who", columns=str(columns))
        damaged_or_read(GOOD, where, flip, cut=cut, place=table, load=lambda: data.load(str(table), layout=layout))


@given(st.text(max_size=60))
def test_any_text_as_columns_ends_in_one_line_or_is_read(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "columns.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            _columns.read(path)
        except ArgumentError as error:
            assert "\n" not in str(error)  # noqa: PT017  it need not be raised


# --- what is held out ---


@given(st.integers(1, 6), st.integers(1, 40), st.floats(0.01, 0.99), st.integers(0, 10**6))
def test_a_person_is_trained_on_or_held_out_and_every_client_trains(
    clients: int, count: int, fraction: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    where = np.concatenate([np.arange(clients), rng.integers(0, clients, count)])  # of persons
    person = np.concatenate([np.arange(len(where)), rng.integers(0, len(where), 2 * count)])
    owners = Owners(tuple(map(str, range(clients))), where[person], person, persons=True)
    train, test = owners.split(fraction)
    assert sorted([*train, *test]) == list(range(len(person)))
    assert not set(person[train]) & set(person[test])
    for client, size in enumerate(np.bincount(where, minlength=clients)):
        held = len(set(person[test]) & set(np.flatnonzero(where == client)))
        assert held == int(size * fraction + 1e-9) < size


# --- clients ---


def named(count: int) -> Dataset:
    x, y = np.eye(2 * count, 3, dtype=np.float32), np.arange(2 * count) % 2
    names, client = tuple(f"c{i}" for i in range(count)), np.arange(2 * count) % count
    return Dataset("named", x, x, y, y, 2, client_names=names, train_client=client, test_client=client)


@pytest.mark.parametrize(
    ("count", "colluders", "stragglers"), [(2, 0, 0), (3, 1, 0), (4, 1, 1), (9, 1, 1), (10, 2, 2), (50, 10, 10)]
)
def test_settings_that_nobody_gave_follow_from_the_clients(count: int, colluders: int, stragglers: int) -> None:
    config = fitted(Config(partition="natural"), named(count), given=())
    assert (config.clients, config.colluders, config.stragglers) == (count, colluders, stragglers)
    kept = fitted(Config(partition="natural", colluders=0, clients=7), named(count), given=("colluders", "clients"))
    assert (kept.clients, kept.colluders) == (7, 0)
    assert fitted(Config(), named(count), given=()) == Config()


def test_natural_clients_hold_their_own_records() -> None:
    parts = partition.of_owners(named(5), 5, "natural", seed=0, persons=False)
    assert [part.tolist() for part in parts] == [[i, i + 5] for i in range(5)]


def test_a_run_of_natural_clients_resumes_to_the_same_log(tmp_path: Path) -> None:
    source, given = data.load("heart"), {"data": "heart", "rounds": 6}
    config = fitted(Config(**given), source, given)  # type: ignore[arg-type]
    whole = Run(config, tmp_path / "whole.jsonl", dataset=source).finish()
    lines = Run(config, tmp_path / "cut.jsonl", dataset=source).lines()
    for _ in range(3):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    again = Run(config, tmp_path / "cut.jsonl", resume=True).finish()
    assert again.rounds == whole.rounds
    assert again.outcome.accuracy_clients == whole.outcome.accuracy_clients


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_client": np.zeros(4)}, "train_client must be of int64"),
        ({"train_client": None}, "train_client must be a numpy array"),
        ({"test_client": np.zeros(3, int)}, r"test_client must have shape \(4,\)"),
        ({"train_client": np.array([0, 1, 2, 0])}, r"train_client must be in 0\.\.1, got 0\.\.2"),
        ({"train_client": np.zeros(4, int)}, "client_names must be different, each with training records"),
        ({"client_names": ("a", "a")}, "client_names must be different"),
        ({"train_person": np.array([7, 7, 8, 9])}, "train_person must have each person at one client"),
        ({"train_person": np.arange(3)}, r"train_person must have shape \(4,\)"),
        ({"client_names": ()}, "train_client must be in"),
    ],
)
def test_owners_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    x, y = np.zeros((4, 1), np.float32), np.array([0, 1, 0, 1])
    good = {"client_names": ("a", "b"), "train_client": y, "test_client": y, "train_person": np.array([0, 1, 0, 1])}
    assert Dataset("x", x, x, y, y, 2, **good).classes == 2  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=words):
        Dataset("x", x, x, y, y, 2, **(good | change))  # type: ignore[arg-type]
