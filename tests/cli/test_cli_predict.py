"""`lightdp predict`: a kept model on the rows of a table, against the features of the training; and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import lightdp
from lightdp.cli import _output
from lightdp.runlog import RunLog
from lightdp.training import data, models, weights
from lightdp.training.config import Config
from lightdp.training.data import Layout, Schema, _columns, _table
from lightdp.training.data._own import Owners
from lightdp.training.simulator import Run as Training
from support.command_line import assert_refused

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

COLUMNS = (
    'crp = "private, missing"\nsex = ["f", "m"]\nage = [20, 80]\nchol = [100, 400, "missing"]\n'  # not as the table
)
LAYOUT: dict[str, Any] = {"label": "sick", "columns": "columns.toml", "client_column": "site", "person_column": "who"}
FLAGS = [word for name, value in LAYOUT.items() for word in (f"--{name.replace('_', '-')}", value)]
QUICK = ["--rounds", "8", "--epsilon", "50", "--lr", "0.5", "--no-report", "--out", "run.jsonl"]
Rows = list[dict[str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def visits(count: int = 240) -> Rows:
    """Visits at four sites, with empty and unlisted cells; sick where age and cholesterol are high."""
    rng, found = np.random.default_rng(3), []
    for row in range(count):
        age, chol = rng.uniform(15, 85), rng.uniform(100, 400)
        sick = "yes, it is" if age / 60 + chol / 300 + rng.normal(0, 0.1) > 5 / 3 else "no"
        found.append({
            "who": f"p{row % (count // 3)}", "site": "nsew"[row % (count // 3) % 4], "age": f"{age:.1f}",
            "sex": "x" if row % 11 == 0 else "fm"[row % 2], "chol": "" if row % 9 == 0 else f"{chol:.0f}",
            "crp": "NA" if row % 7 == 0 else f"{rng.uniform(3, 90):.2f}", "sick": sick,
        })  # fmt: skip
    return found


def save(name: str, rows: Rows, columns: list[str] | None = None) -> None:
    with open(name, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123  a name in the folder of the test
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def kept(tmp_path: Path, run: Run) -> Rows:
    """The rows of t.csv, on which model.safetensors was trained."""
    rows = visits()
    save("t.csv", rows)
    (tmp_path / "columns.toml").write_text(COLUMNS)
    done = run("run", "--data", "t.csv", *FLAGS, *QUICK, "--save-model", "model.safetensors")
    assert done.code == 0, done.err
    return rows


def split(tmp_path: Path) -> tuple[Any, Any]:
    """The rows of t.csv that were trained on, and those that were held out."""
    table = _table.read(tmp_path / "t.csv")
    return Owners.of(Layout(**LAYOUT), table, len(table["who"])).split(0.2)


def by_hand(tmp_path: Path) -> torch.Tensor:
    """The probabilities of each row of t.csv: the features of the training, and the weights of the file."""
    source, (train, test) = data.load("t.csv", layout=Layout(**LAYOUT)), split(tmp_path)
    x = np.empty((len(train) + len(test), source.train_x.shape[1]), np.float32)
    x[train], x[test] = source.train_x, source.test_x
    bounds = RunLog.read(tmp_path / "run.jsonl").outcome.bounds
    assert bounds is not None
    low, high = bounds["crp"]["low"], bounds["crp"]["high"]
    raw = x[:, 0].astype(np.float64)
    x[:, 0] = np.where(np.isnan(raw), 0, 2 * (np.clip(raw, low, high) - low) / (high - low) - 1)
    tensors = weights.read(tmp_path / "model.safetensors").tensors
    logits = torch.nn.functional.linear(torch.from_numpy(x), tensors["1.weight"], tensors["1.bias"])
    return logits.double().softmax(dim=1)


def test_predictions_are_those_of_the_model_on_the_features_of_the_training(
    tmp_path: Path, run: Run, kept: Rows
) -> None:
    expected = by_hand(tmp_path)
    classes = ["no", "yes, it is"]
    names = [classes[place] for place in expected.argmax(dim=1).tolist()]
    assert set(names) == set(classes)
    save("new.csv", kept, ["chol", "other", "age", "crp", "sex"])  # no label, clients or persons; another order
    done = run("predict", "model.safetensors", "new.csv")
    assert done.code == 0
    header, *lines = csv.reader(io.StringIO(done.out))
    assert header == ["predicted", "probability_no", "probability_yes, it is"]
    assert [line[0] for line in lines] == names
    assert [line[1:] for line in lines] == [[f"{share:.6f}" for share in shares] for shares in expected.tolist()]
    assert "sex: 22 of 240 values not listed, taken as missing" in done.err
    assert "accuracy" not in done.err
    found = json.loads(run("predict", "model.safetensors", "new.csv", "--json").out)
    assert [each["predicted"] for each in found["predictions"]] == names
    assert [list(each["probabilities"].values()) for each in found["predictions"]] == expected.tolist()
    assert (found["classes"], found["label"], found["accuracy"], found["labelled"]) == (classes, "sick", None, 0)


def test_the_accuracy_on_held_out_rows_is_that_of_the_run(tmp_path: Path, run: Run, kept: Rows) -> None:
    _, test = split(tmp_path)
    save("held.csv", [kept[row] for row in test.tolist()], ["sick", "crp", "chol", "sex", "age"])
    accuracy = RunLog.read(tmp_path / "run.jsonl").accuracy
    assert accuracy is not None
    assert json.loads(run("predict", "model.safetensors", "held.csv", "--json").out)["accuracy"] == accuracy
    done = run("predict", "model.safetensors", "held.csv", "--out", "out.csv")
    assert f"accuracy {accuracy:.2%} on {len(test)} rows: not private, a figure of these rows alone" in done.err
    assert done.out == "wrote out.csv\n"
    assert (tmp_path / "out.csv").read_text() == run("predict", "model.safetensors", "held.csv").out


@pytest.mark.usefixtures("kept")
def test_a_file_is_replaced_if_that_is_asked_for_and_else_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    out, wanted = tmp_path / "out.csv", run("predict", "model.safetensors", "t.csv").out
    predict = ["predict", "model.safetensors", "t.csv", "--out", out]
    out.write_text("my notes")
    assert_refused(run(*predict), f"out must be a new file: --overwrite replaces it, got out='{out}'")
    with monkeypatch.context() as patched:  # as if it came after the check
        patched.setattr(_output, "check", lambda *_, **__: None)
        assert_refused(run(*predict), f"out must be a new file: --overwrite replaces it, got out='{out}'")
    assert out.read_text() == "my notes"
    assert run(*predict, "--overwrite").code == 0
    assert out.read_text() == wanted


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    refused = run("predict", "none.safetensors", "none.csv", "--out", tmp_path / "out.csv")
    assert_refused(refused, f"out must be writable, got out='{tmp_path}/out.csv'")


def test_labels_that_are_missing_or_unknown_are_said(run: Run, kept: Rows) -> None:
    rows = [kept[0], kept[1] | {"sick": ""}, kept[2] | {"sick": "maybe"}]
    save("new.csv", rows)
    found = json.loads(run("predict", "model.safetensors", "new.csv", "--json").out)
    right = found["predictions"][0]["predicted"] == kept[0]["sick"]
    assert (found["labelled"], found["accuracy"]) == (2, right / 2)
    assert "sick: 1 row with a label that is no class of the model, counted as wrong" in found["notes"]


@pytest.mark.usefixtures("kept")
def test_a_row_is_moved_to_the_bounds_however_far_it_is(tmp_path: Path, run: Run) -> None:
    bounds = json.loads(weights.read(tmp_path / "model.safetensors").facts["bounds"])["crp"]
    rows = [{"age": "200", "sex": "?", "chol": "-3", "crp": "1e30"}, {"age": "80", "sex": "", "chol": "100", "crp": ""}]
    save("far.csv", rows[:1])
    save("near.csv", [rows[1] | {"crp": "1e6"}])
    far, near = run("predict", "model.safetensors", "far.csv"), run("predict", "model.safetensors", "near.csv")
    assert far.out == near.out
    assert "age: 1 of 1 value moved to the bounds 20 and 80" in far.err
    assert f"crp: 1 of 1 value moved to the bounds {bounds['low']:g} and {bounds['high']:g}\n" in far.err


def test_parquet_and_arrays_are_read_as_text_is(tmp_path: Path, run: Run, kept: Rows) -> None:
    wanted = run("predict", "model.safetensors", "t.csv").out
    numbers = {
        name: [float(row[name] or "nan") if row[name] != "NA" else float("nan") for row in kept]
        for name in ("age", "chol", "crp")
    }
    np.savez(tmp_path / "t.npz", sex=np.array([row["sex"] for row in kept]), **numbers)  # type: ignore[arg-type]
    assert run("predict", "model.safetensors", "t.npz").out == wanted
    pyarrow: Any = pytest.importorskip("pyarrow")
    columns = numbers | {"sex": [row["sex"] for row in kept]}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert run("predict", "model.safetensors", "t.parquet").out == wanted


@pytest.mark.usefixtures("kept")
def test_the_file_says_what_is_public_and_nothing_else(tmp_path: Path) -> None:
    facts = weights.read(tmp_path / "model.safetensors").facts
    assert set(facts) == {"table", "bounds"}
    assert json.loads(facts["bounds"]) == RunLog.read(tmp_path / "run.jsonl").outcome.bounds
    assert json.loads(facts["table"]) == {
        "model": "linear",
        "label": "sick",
        "classes": ["no", "yes, it is"],
        "columns": [
            {"name": "crp", "kind": "private", "missing": True},
            {"name": "sex", "kind": "category", "values": ["f", "m"], "missing": False},
            {"name": "age", "kind": "number", "low": 20.0, "high": 80.0, "missing": False},
            {"name": "chol", "kind": "number", "low": 100.0, "high": 400.0, "missing": True},
        ],
    }


def test_statistics_of_the_data_stay_out_of_the_file(tmp_path: Path, run: Run) -> None:
    save("t.csv", visits(), ["site", "age", "chol", "sick"])
    flags = ["--label", "sick", "--client-column", "site", "--columns", "statistics", *QUICK]
    assert run("run", "--data", "t.csv", *flags, "--save-model", "s.safetensors").code == 0
    assert weights.read(tmp_path / "s.safetensors").facts == {}
    assert_refused(run("predict", "s.safetensors", "t.csv"), "model must be a .safetensors file that says how rows")


def test_other_data_and_changed_copies_have_no_facts(tmp_path: Path) -> None:
    small = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 2, "epsilon": 50.0}
    heart, digits = data.load("heart"), data.load("digits")
    assert heart.schema is not None
    assert digits.schema is None
    other = dataclasses.replace(heart, train_x=heart.train_x * np.float32(0.5))  # no longer what the schema says
    for name, source in (("digits", digits), ("other", other)):
        training = Training(Config(**small), tmp_path / f"{name}.jsonl", dataset=source)  # type: ignore[arg-type]
        training.finish()
        training.save(tmp_path / f"{name}.safetensors")
        assert weights.read(tmp_path / f"{name}.safetensors").facts == {}


@pytest.mark.parametrize("name", ["train_x", "test_x", "train_y", "test_y"])
def test_a_copy_keeps_its_schema_unless_records_or_labels_are_others(name: str) -> None:
    heart = data.load("heart")
    renamed = dataclasses.replace(heart, name="mine", train_client=None, test_client=None, client_names=())
    assert renamed.schema == heart.schema is not None
    other = dataclasses.replace(renamed, **{name: getattr(heart, name)[::-1]})
    assert other.schema is None
    assert dataclasses.replace(other, name="again").schema is None


def test_heart_has_facts_and_an_own_module_none_of_a_built_in_model(tmp_path: Path, run: Run) -> None:
    small: dict[str, Any] = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 2, "epsilon": 50.0}
    heart = data.load("heart")
    assert heart.schema is not None
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(heart.schema.width, 2))
    training = Training(Config(**small), tmp_path / "heart.jsonl", dataset=heart, module=net)
    training.save(tmp_path / "own.safetensors")
    training.save("own.pt")
    assert Schema.from_dict(json.loads(weights.read(tmp_path / "own.safetensors").facts["table"])) == heart.schema
    save("new.csv", [{"age": "50"}])
    assert_refused(run("predict", "own.safetensors", "new.csv"), "must be one that lightdp builds", "an own module")
    assert_refused(run("predict", "own.pt", "new.csv"), "must be a .safetensors file that says", "own.pt")


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.safetensors", "t.csv"], ["model must be a readable file", "none.safetensors"]),
        (["t.csv", "t.csv"], ["model must be a file whose name ends in", "t.csv"]),
        (["model.safetensors", "none.csv"], ["cannot read the data in none.csv"]),
        (["model.safetensors", "columns.toml"], ["table must be a file that ends in .csv", "columns.toml"]),
        (["model.safetensors", "t.csv", "--out", "t.csv"], ["out must be a new file", "t.csv"]),
        (["model.safetensors", "t.csv", "--out", "no/out.csv"], ["out must be a .csv file", "no/out.csv"]),
        (["model.safetensors", "t.csv", "--out", "out.txt"], ["out must be a .csv file", "out.txt"]),
    ],
)
@pytest.mark.usefixtures("kept")
def test_wrong_files_end_in_one_line(run: Run, arguments: list[str], words: list[str]) -> None:
    assert_refused(run("predict", *arguments), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["new.csv", "it is empty"]),
        ("age,sex,chol,crp\n", ["new.csv", "it has no rows"]),
        ("age,sex\n50,f\n", ["table must have the columns of the model", "without crp, chol"]),
        ("age,sex,chol,crp\nold,f,200,3\n", ["table must have finite numbers in column 'age', got 'old' in row 1"]),
        ("age,sex,chol,crp\n50,f,200,3\n50,f,200,inf\n", ["column 'crp', got 'inf' in row 2"]),
        ("age,sex,chol,crp\n50,f,200\n", ["new.csv", "line 2 has 3 cells"]),
        ("age,age,sex,chol,crp\n5,5,f,2,3\n", ["'age' occurs twice"]),
    ],
)
@pytest.mark.usefixtures("kept")
def test_wrong_tables_end_in_one_line(tmp_path: Path, run: Run, text: str, words: list[str]) -> None:
    (tmp_path / "new.csv").write_text(text)
    assert_refused(run("predict", "model.safetensors", "new.csv", "--out", "out.csv"), *words)
    assert not (tmp_path / "out.csv").exists()


def changed(path: Path, table: Any = None, bounds: Any = None, **tensors: torch.Tensor) -> Path:
    """The model with other facts or weights, in changed.safetensors."""
    file = weights.read(path)
    facts = dict(file.facts)
    for name, change in (("table", table), ("bounds", bounds)):
        if callable(change):
            facts[name] = json.dumps(change(json.loads(facts[name])))
        elif change is not None:
            facts[name] = change
    made = path.with_name("changed.safetensors")
    weights.write(made, {**file.tensors, **tensors}, facts=facts)
    return made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "{"}, ["model must say how rows become features"]),
        ({"table": "[" * 100000}, ["model must say how rows become features"]),
        ({"table": "[]"}, ["not a label, two classes"]),
        ({"table": lambda told: told | {"classes": ["a"]}}, ["not a label, two classes"]),
        *[
            ({"table": lambda told, classes=classes: told | {"classes": classes}}, ["its classes are not different"])
            for classes in (["a", "a"], ["a", 1], ["a", "\ud800"], ["a", "b\nc"])
        ],
        ({"table": lambda told: told | {"label": "\x1b[2J"}}, ["its columns are not different printable texts"]),
        ({"table": lambda told: told | {"columns": told["columns"] * 2}}, ["its columns are not different"]),
        ({"table": lambda told: told | {"columns": [{"name": "age", "kind": "number"}]}}, ["it has a column"]),
        *[
            (
                {"table": lambda told, bounds=bounds: told | {"columns": [told["columns"][2] | bounds]}},
                ["it has a column"],
            )
            for bounds in ({"low": math.nan}, {"low": -math.inf}, {"high": math.inf}, {"high": 1e31}, {"high": 20.0})
        ],
        *[
            (
                {"table": lambda told, values=values: told | {"columns": [told["columns"][1] | {"values": values}]}},
                ["its values are not different printable texts"],
            )
            for values in (["f", "f"], ["f", "m\x1b[2J"])
        ],
        ({"table": lambda told: told | {"columns": told["columns"][:2]}}, ["must have weights for 4 features"]),
        ({"table": lambda told: told | {"classes": [str(i) for i in range(999)]}}, ["7 features and 999 classes"]),
        ({"table": lambda told: told | {"model": "forest"}}, ["model must be one of", "forest"]),
        ({"table": lambda told: told | {"model": "cnn"}}, ["model cnn needs images"]),
        ({"table": lambda told: told | {"model": None}}, ["an own module"]),
        ({"bounds": "{}"}, ["must have the bounds of its private columns", "crp", "before they were found"]),
        ({"bounds": lambda told: {"crp": told["crp"] | {"low": 1e9}}}, ["its bounds of 'crp' are none"]),
        ({"bounds": lambda told: {"crp": told["crp"] | {"high": 2.0**41}}}, ["its bounds of 'crp' are none"]),
        ({"bounds": lambda told: {"crp": told["crp"] | {"low": -(2.0**41)}}}, ["its bounds of 'crp' are none"]),
        ({"bounds": "3"}, ["its bounds"]),
        ({"1.bias": torch.tensor([0.0, float("nan")])}, ["must have finite weights"]),
        ({"1.bias": torch.zeros(2).to(torch.float8_e4m3fn)}, ["must have finite weights of float16, bfloat16"]),
        ({"1.bias": torch.zeros(2, dtype=torch.int64)}, ["must have finite weights of float16, bfloat16"]),
        ({"1.bias": torch.full((2,), 1e300, dtype=torch.float64)}, ["model must give finite scores"]),
        ({"1.bias": torch.zeros(3)}, ["must have weights for 7 features and 2 classes"]),
        ({"2.bias": torch.zeros(3)}, ["must have weights for 7 features and 2 classes"]),
    ],
)
def test_files_that_were_changed_end_in_one_line(
    tmp_path: Path, run: Run, change: dict[str, Any], words: list[str]
) -> None:
    written(tmp_path / "model.safetensors")
    save("new.csv", visits(4 * 3))
    assert run("predict", "model.safetensors", "new.csv").code == 0
    made = changed(tmp_path / "model.safetensors", **change)
    assert_refused(run("predict", made, "new.csv"), *words)


def test_no_model_is_built_that_is_larger_than_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    save("new.csv", visits(4 * 3))
    written(tmp_path / "model.safetensors")
    made = changed(tmp_path / "model.safetensors", lambda told: told | {"classes": [str(i) for i in range(999)]})
    monkeypatch.setattr(models, "build", None)
    assert_refused(run("predict", made, "new.csv"), "must have weights for 7 features and 999 classes")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_precision_are_used(tmp_path: Path, run: Run, kind: torch.dtype) -> None:
    written(tmp_path / "model.safetensors")
    save("new.csv", visits(4 * 3))
    made = changed(tmp_path / "model.safetensors", **{"1.weight": torch.ones(2, 7, dtype=kind)})
    assert run("predict", made, "new.csv").out == run("predict", "model.safetensors", "new.csv").out


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delitem(sys.modules, "lightdp.training.predict", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused = run("predict", "model.safetensors", "new.csv")
    assert_refused(refused, "lightdp predict needs an extra; from a clone: pip install '.[train]'")


def written(path: Path) -> None:
    """A model of ones, as a run keeps one."""
    columns = [
        {"name": "crp", "kind": "private", "missing": True},
        {"name": "sex", "kind": "category", "values": ["f", "m"], "missing": False},
        {"name": "age", "kind": "number", "low": 20.0, "high": 80.0, "missing": False},
        {"name": "chol", "kind": "number", "low": 100.0, "high": 400.0, "missing": True},
    ]
    facts = {
        "table": json.dumps({"model": "linear", "label": "sick", "classes": ["no", "yes"], "columns": columns}),
        "bounds": json.dumps({"crp": {"low": 2.0, "high": 128.0, "clear": True}}),
    }
    tensors = {"1.weight": torch.ones(2, 7), "1.bias": torch.zeros(2)}
    weights.write(path, tensors, facts=facts)


# --- the schema ---


def test_a_schema_is_as_it_was_written() -> None:
    features = (
        _columns.Number("a", 0.1, 1e30, shows_missing=True),
        _columns.Category("b", ("missing", "3", " "), shows_missing=False),
        _columns.Category("c", ("x", "missing"), shows_missing=True),
        _columns.Unbounded("d"),
    )
    schema = Schema("y", ("1", "2", "ä"), features)
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert (schema.width, schema.private) == (2 + 3 + 3 + 1, ["d"])


@pytest.mark.usefixtures("kept")
def test_python_gives_what_the_command_writes_and_takes_paths_as_text(run: Run) -> None:
    found = lightdp.predict("model.safetensors", "t.csv")
    lines = [*csv.reader(io.StringIO(run("predict", "model.safetensors", "t.csv").out))][1:]
    assert [line[0] for line in lines] == found.names
    assert found.labelled == len(lines)
    assert np.allclose(found.probabilities.sum(axis=1), 1)
