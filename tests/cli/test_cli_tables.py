"""Tables of users' own: those that train, and sixty that are wrong, each of which ends in one line."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.report._figures import facts
from lightdp.runlog import RunLog
from support.command_line import assert_refused

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

COLUMNS = 'age = [20, 80]\nsex = ["f", "m"]\nchol = [100, 400, "missing"]\n'
TABLE = ["--label", "sick", "--columns", "columns.toml"]
OWN = [*TABLE, "--client-column", "site", "--person-column", "who"]
QUICK = ["--rounds", "4", "--epsilon", "50", "--lr", "0.5", "--no-report", "--out", "run.jsonl"]
DRAWN = ["--clients", "4", "--colluders", "1", "--stragglers", "1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(count: int = 240) -> list[list[str]]:
    """Visits of count/3 persons at four sites; sick where age and cholesterol are high."""
    rng = np.random.default_rng(3)
    found = [["who", "site", "age", "sex", "chol", "sick"]]
    for row in range(count):
        person = row % (count // 3)
        age, chol = rng.uniform(20, 80), rng.uniform(100, 400)
        sick = "yes" if age / 60 + chol / 300 + rng.normal(0, 0.1) > 5 / 3 else "no"
        site = ("north", "south", "east", "west")[person % 4]
        found.append([f"p{person}", site, f"{age:.1f}", "fm"[person % 2], "" if row % 9 == 0 else f"{chol:.0f}", sick])
    return found


def text(table: list[list[str]], separator: str = ",") -> str:
    return "".join(separator.join(row) + "\n" for row in table)


def column(table: list[list[str]], name: str, cell: Any) -> list[list[str]]:
    """The table with other cells in a column: one text for all, or by the number of the row."""
    at = table[0].index(name)
    changed = [[*row[:at], cell(i) if callable(cell) else cell, *row[at + 1 :]] for i, row in enumerate(table[1:])]
    return [table[0], *changed]


def saved(folder: Path, table: str | bytes, columns: str = COLUMNS) -> None:
    (folder / "t.csv").write_bytes(table.encode() if isinstance(table, str) else table)
    (folder / "columns.toml").write_text(columns)


# --- tables that train ---


def test_a_table_with_sites_and_persons_trains_and_says_for_one_person(tmp_path: Path, run: Run) -> None:
    saved(tmp_path, text(rows()))
    done = run("run", "--data", "t.csv", *OWN, *QUICK)
    assert done.code == 0, done.err
    for words in (
        "4 clients, natural: records 48 to 48",
        "64 persons",
        "records to train on: east 48; north 48; south 48; west 48",
        "classes, taken as public: no, yes",
        "for one person with all",
        "of the persons not in the data",
        "accuracy, north",
        "All of this is for one person",
    ):
        assert words in done.out
    assert "NOT PRIVATE" not in done.out
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    config, end = lines[0]["config"], lines[-1]
    assert (config["clients"], config["colluders"], config["stragglers"]) == (4, 1, 1)
    assert (config["unit"], config["partition"], end["unit"]) == ("person", "natural", "person")
    assert set(end["accuracy_clients"]) == {"north", "south", "east", "west"}
    assert end["accuracy"] == pytest.approx(np.mean(list(end["accuracy_clients"].values())))  # 12 records each
    done = run("audit", "run.jsonl")
    assert done.code == 0
    assert {"east", "north", "south", "west"} <= {line.split()[0] for line in done.out.splitlines() if line.split()}
    figures = list(facts(RunLog.read(tmp_path / "run.jsonl")))
    assert figures.index("ε true") < figures.index("accuracy, north")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_drawn_clients_and_a_mark_at_the_beginning(tmp_path: Path, run: Run, separator: str) -> None:
    saved(tmp_path, b"\xef\xbb\xbf" + text(rows(), separator).encode())
    done = run("run", "--data", "t.csv", *TABLE, *DRAWN, *QUICK, "--test-fraction", "0.5")
    assert done.code == 0, done.err
    assert "4 clients, iid: records 30 to 30" in done.out
    assert "left out, since not described: who, site" in done.out
    assert "one record of a" in done.out


def test_an_npz_of_columns_and_one_of_arrays_train_like_the_csv(tmp_path: Path, run: Run) -> None:
    header, *body = rows()
    saved(tmp_path, text([header, *body]))
    cells = dict(zip(header, np.array(body).T, strict=True))
    chol = np.array([float(cell or "nan") for cell in cells["chol"]])
    np.savez(tmp_path / "t.npz", **(cells | {"age": cells["age"].astype(float), "chol": chol}))
    outcomes = []
    for name in ("t.csv", "t.npz"):
        done = run("run", "--data", name, *OWN, *QUICK, "--json", "--out", f"{name}.jsonl")
        assert done.code == 0, done.err
        outcomes.append(json.loads(done.out)["accuracy_clients"])
    assert outcomes[0] == outcomes[1]
    x = np.random.default_rng(0).normal(size=(240, 1, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(int), who=cells["who"], site=cells["site"])
    done = run("run", "--data", "x.npz", "--client-column", "site", "--person-column", "who", *QUICK, "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["accuracy_clients"]) == {"north", "south", "east", "west"}


def test_parquet_is_read_or_its_extra_named(tmp_path: Path, run: Run) -> None:
    saved(tmp_path, text(rows()))
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    try:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        assert_refused(run("run", "--data", "t.parquet", *OWN, *QUICK), "t.parquet", "pip install '.[parquet]'")
        return
    assert_refused(run("run", "--data", "t.parquet", *OWN, *QUICK), "cannot read the data in t.parquet")
    header, *body = rows()
    cells: dict[str, list[Any]] = {name: [row[at] for row in body] for at, name in enumerate(header)}
    cells |= {"age": [float(cell) for cell in cells["age"]]}
    cells |= {"chol": [None if cell == "" else int(cell) for cell in cells["chol"]]}
    parquet.write_table(arrow.table(cells), tmp_path / "t.parquet")
    found = [
        json.loads(run("run", "--data", name, *OWN, *QUICK, "--json", "--out", f"{name}.jsonl").out)
        for name in ("t.csv", "t.parquet")
    ]
    assert found[0]["accuracy_clients"] == found[1]["accuracy_clients"]


def test_statistics_of_the_data_are_named_not_private_everywhere(tmp_path: Path, run: Run) -> None:
    table = [[*row, "constant" if row[0] == "who" else "x"] for row in rows()]
    saved(tmp_path, text(table))
    flags = ["--label", "sick", "--columns", "statistics", "--client-column", "site", "--person-column", "who"]
    done = run("run", "--data", "t.csv", *flags, *QUICK, "--report")
    assert done.code == 0, done.err
    sentence = (
        "NOT PRIVATE: features were scaled by statistics of the data (--columns statistics), which no ε here covers."
    )
    assert done.out.startswith(sentence)
    assert done.out.count(sentence) == 2
    assert "left out, since constant: constant" in done.out
    assert "<h1>NOT PRIVATE" in (tmp_path / "run.html").read_text()
    end = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    assert end["statement"][0] == sentence
    done = run("report", "run.jsonl", "--out", "report.html")
    assert next(line for line in done.out.splitlines() if line.strip()).strip().startswith("NOT PRIVATE · ")
    done = run("audit", "run.jsonl", "--html", "audit.html")
    assert done.code == 0
    assert done.out.startswith(sentence)
    assert "\nNOT PRIVATE, though it holds: what the log says of ε follows from its rounds\n" in done.out
    assert "<h1>Audit of a log: NOT PRIVATE" in (tmp_path / "audit.html").read_text()
    assert json.loads(run("audit", "run.jsonl", "--json").out)["notes"][0] == sentence
    assert {"east", "north", "south", "west"} <= {line.split()[0] for line in done.out.splitlines() if line.split()}
    figures = list(facts(RunLog.read(tmp_path / "run.jsonl")))
    assert figures.index("ε true") < figures.index("accuracy, north")


@pytest.mark.parametrize(
    ("name", "cell", "asked"),
    [
        ("who", None, True),  # a text that most rows share with another one
        ("Patient-ID", str, False),  # a number for each row
        ("Patient-ID", lambda i: str(i // 2), True),
        ("measured", lambda i: str(i // 2), False),
        ("ward", lambda i: f"w{i % 7}", False),
    ],
)
def test_a_column_that_may_name_persons_is_asked_about_unless_they_are_named(
    tmp_path: Path, run: Run, name: str, cell: Any, *, asked: bool
) -> None:
    table = rows() if cell is None else column(rows(), "who", cell)
    saved(tmp_path, text([[name, *table[0][1:]], *table[1:]]))
    question = f"column {name} repeats: does it name persons? then --person-column {name} protects each whole person\n"
    done = run("run", "--data", "t.csv", *TABLE, *DRAWN, *QUICK)
    assert (question in done.out) == asked
    assert question not in (tmp_path / "run.jsonl").read_text()
    if asked:
        done = run("run", "--data", "t.csv", *TABLE, *DRAWN, *QUICK, "--person-column", name, "--overwrite")
        assert done.code == 0
        assert "does it name persons?" not in done.out


def test_one_class_at_a_client_and_unseen_categories_are_handled(tmp_path: Path, run: Run) -> None:
    table = column(rows(), "sex", lambda i: "x" if i % 3 == 0 else "f")
    at = table[0].index("sick")
    table = [[*row[:at], "no"] if row[1] == "east" else row for row in table]
    saved(tmp_path, text(table))
    done = run("run", "--data", "t.csv", *OWN, *QUICK)
    assert done.code == 0, done.err
    assert "different labels 1 to 2" in done.out
    assert "sex: 64 of 192 values not listed, taken as missing" in done.out


def test_private_bounds_are_found_printed_and_logged(tmp_path: Path, run: Run) -> None:
    saved(tmp_path, text(rows()), 'age = "private"\nsex = ["f", "m"]\nchol = "private, missing"\n')
    done = run("run", "--data", "t.csv", *OWN, *QUICK, "--rounds", "12")
    assert done.code == 0, done.err
    assert "bounds of age, chol: found by the first 2 rounds of 12, under the same noise" in done.out
    assert "linear with 12 parameters" in done.out  # age, f, m, chol, chol missing and 1, for two classes
    assert "Bounds found in the first 2 rounds, as private as all others: age [16, 128], chol [64, 512]." in done.out
    assert "NOT PRIVATE" not in done.out
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])["bounds"]["age"]["high"] == 128
    done = run("audit", "run.jsonl")
    assert done.code == 0
    assert {"east", "north", "south", "west"} <= {line.split()[0] for line in done.out.splitlines() if line.split()}
    figures = list(facts(RunLog.read(tmp_path / "run.jsonl")))
    assert figures.index("ε true") < figures.index("accuracy, north")
    assert run("run", "--data", "t.csv", *OWN, *QUICK, "--rounds", "12", "--resume").code == 0
    assert_refused(run("run", "--data", "t.csv", *OWN, *QUICK, "--overwrite", "--grace", "1"), "columns", "grace=1")
    assert_refused(run("run", "--data", "heart", "--bounds-rounds", "2", "--out", "a.jsonl"), "bounds_rounds=2")


def test_heart_trains_with_accuracy_for_each_hospital(run: Run) -> None:
    done = run("run", "--data", "heart", "--epsilon", "1", "--json")
    assert done.code == 0, done.err
    end = json.loads(done.out)
    assert set(end["accuracy_clients"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert end["accuracy"] > 0.7
    assert end["epsilon"] <= 1
    assert_refused(
        run("run", "--data", "heart", "--clients", "5", "--out", "a.jsonl"), "clients must be 4", "got clients=5"
    )
    assert_refused(
        run("run", "--data", "heart", "--label", "x", "--out", "a.jsonl"), "label is for tables", "got label='x'"
    )
    assert_refused(
        run("run", "--data", "heart", "--partition", "shards:2", "--out", "a.jsonl"),
        "partition must be natural",
        "shards:2",
    )


# --- tables that are wrong ---

GOOD = text(rows(60))
HEAD, LINE = "who,site,age,sex,chol,sick\n", "p1,north,30,f,200,no\n"


def with_columns(columns: str) -> tuple[str, str, list[str]]:
    return GOOD, columns, OWN


WRONG: dict[str, tuple[str | bytes, str, list[str], list[str]]] = {
    # files
    "empty file": (b"", COLUMNS, OWN, ["t.csv", "empty"]),
    "header alone": (HEAD, COLUMNS, OWN, ["t.csv", "no rows"]),
    "blank lines alone": (HEAD + "\n\n", COLUMNS, OWN, ["t.csv", "no rows"]),
    "short line": (HEAD + LINE + "p1,north\n", COLUMNS, OWN, ["line 3 has 2 cells, its header 6"]),
    "long line": (HEAD + "p,n,1,f,2,no,9\n", COLUMNS, OWN, ["line 2 has 7 cells"]),
    "column twice": ("a,a\n1,2\n", COLUMNS, OWN, ["column 'a' occurs twice"]),
    "column without name": ("who,,age\n1,2,3\n", COLUMNS, OWN, ["column 2 of its header has no name"]),
    "latin-1": ("who,ort\np1,Zürich\n".encode("latin-1"), COLUMNS, OWN, ["t.csv", "save it as UTF-8"]),
    "utf-16": (GOOD.encode("utf-16"), COLUMNS, OWN, ["t.csv", "save it as UTF-8"]),
    "open quote": (HEAD + '"p1,north,30,f,200,no\n', COLUMNS, OWN, ["t.csv", "line 2"]),
    "zip": (b"PK\x03\x04" + bytes(40), COLUMNS, OWN, ["t.csv", "must be printable"]),
    "one row": (HEAD + LINE, COLUMNS, TABLE, ["test_fraction must hold out a record of the 1"]),
    "small clients": (
        text(column(rows(60), "site", lambda i: f"s{i // 3}")), COLUMNS, [*TABLE, "--client-column", "site"],
        ["hold out a record of a client that has 5 or more, but none of the 20 has over 3", "test_fraction=0.2"],
    ),
    "line break in a name": ('who,"a\nge"\n1,2\n', COLUMNS, OWN, ["must be printable", "'a\\nge'"]),
    "line break in a client": (
        text(column(rows(60), "site", lambda i: '"a\nb"' if i else "c")), COLUMNS, [*TABLE, "--client-column", "site"],
        ["client_column must have printable names", "'a\\nb'"],
    ),
    # label
    "label not there": (GOOD, COLUMNS, ["--label", "ill"], ["label must be a column", "label='ill'"]),
    "label misspelt": (GOOD, COLUMNS, ["--label", "Sick", "--columns", "columns.toml"], ["who, site", "label='Sick'"]),
    "no label": (GOOD, COLUMNS, ["--columns", "columns.toml"], ["label must be the column", "got label=None"]),
    "neither label nor columns": (GOOD, COLUMNS, [], ["label must be the column", "got label=None"]),
    "label empty": (GOOD, COLUMNS, ["--label", "", "--columns", "columns.toml"], ["label must be text", "label=''"]),
    "label missing in a row": (
        text(column(rows(60), "sick", lambda i: "?" if i == 4 else "no")), COLUMNS, OWN,
        ["label must have a value in every row", "1 missing cell, the first in row 5"],
    ),
    "line break in a class": (
        text(column(rows(60), "sick", lambda i: '"a\nb"' if i % 2 else "c")), COLUMNS, OWN,
        ["label must have printable classes", r"'a\nb' in 'sick'"],
    ),
    "one class": (text(column(rows(60), "sick", "no")), COLUMNS, OWN, ["2 or more classes", "'no' alone"]),
    "label nearly right": (
        GOOD, COLUMNS, ["--label", "sik", "--columns", "columns.toml"],
        ["(who, site, age, sex, chol, sick), got label='sik': did you mean 'sick'?"],
    ),
    "no label of many columns": (
        text([[f"c{i}" for i in range(30)] + ["last"], ["1"] * 31]), COLUMNS, ["--columns", "columns.toml"],
        ["one of c0, c1, ", "c19 and 11 more, the last last, got label=None"],
    ),
    "label is a number": (text(rows(60)), COLUMNS, ["--label", "age", "--columns", "columns.toml"], ["columns must"]),
    "label is an id": (
        text(column(rows(60), "sick", lambda i: f"{i}.5")), COLUMNS, OWN, ["label='sick'", "60 different values in 60"],
    ),
    "label is the client": (
        GOOD, COLUMNS, [*TABLE, "--client-column", "sick"], ["client_column must be another column than label"],
    ),
    "class not listed": (*with_columns(COLUMNS + 'sick = ["no", "maybe"]'), ["list all classes of label='sick'"]),
    "label with bounds": (*with_columns(COLUMNS + "sick = [0, 1]"), ["bounds for 'sick'"]),
    # clients
    "no such client column": (GOOD, COLUMNS, [*TABLE, "--client-column", "city"], ["client_column='city'"]),
    "one client": (text(column(rows(60), "site", "north")), COLUMNS, OWN, ["2 or more clients", "'north' alone"]),
    "client missing": (
        text(column(rows(60), "site", lambda i: "" if i < 2 else "a")), COLUMNS, OWN, ["client_column=", "2 missing"],
    ),
    "clients disagree": (GOOD, COLUMNS, [*OWN, "--clients", "7"], ["clients must be 4", "got clients=7"]),
    "population disagrees": (
        GOOD, COLUMNS, [*OWN, "--clients", "3", "--population", "7"], ["clients must be 4", "got clients=7"],
    ),
    "partition too": (GOOD, COLUMNS, [*OWN, "--partition", "dirichlet:1"], ["must be natural", "dirichlet:1"]),
    "natural without clients": (GOOD, COLUMNS, [*TABLE, "--partition", "natural"], ["client_column=None"]),
    "too many colluders": (GOOD, COLUMNS, [*OWN, "--colluders", "4"], ["colluders must be in 0..3", "colluders=4"]),
    "more clients than records": (GOOD, COLUMNS, [*TABLE, "--clients", "90"], ["must be at most", "clients=90"]),
    # persons
    "no such person column": (GOOD, COLUMNS, [*TABLE, "--person-column", "id"], ["person_column='id'"]),
    "person missing": (text(column(rows(60), "who", lambda i: "NA" if i == 0 else "p")), COLUMNS, OWN, ["row 1"]),
    "person at two clients": (
        text(column(rows(60), "who", lambda i: f"p{i // 2}")), COLUMNS, OWN,
        ["person_column must have each person at one client", "30 persons", "person_column='who': merge each person's"],
    ),
    "person of unit client": (GOOD, COLUMNS, [*OWN, "--unit", "client"], ["unit='person'", "got unit='client'"]),
    "unit person without column": (GOOD, COLUMNS, [*TABLE, *DRAWN, "--unit", "person"], ["person_column=None"]),
    "more clients than persons": (
        GOOD, COLUMNS, [*TABLE, "--person-column", "who", "--clients", "30"], ["number of persons, 16", "clients=30"],
    ),
    "person is the label": (GOOD, COLUMNS, [*TABLE, "--person-column", "sick"], ["person_column='sick'"]),
    # columns
    "no columns": (GOOD, COLUMNS, ["--label", "sick"], ["columns must be a TOML file", "not private", "columns=None"]),
    "no such file": (GOOD, COLUMNS, ["--label", "sick", "--columns", "no.toml"], ["columns='no.toml'", "No such file"]),
    "columns is a folder": (GOOD, COLUMNS, ["--label", "sick", "--columns", "."], ["columns='.'"]),
    "no TOML": (*with_columns("age: [20, 80]"), ["columns must be a TOML file", "columns.toml"]),
    "empty columns": (*with_columns("# nothing"), ["an empty file 'columns.toml'"]),
    "label alone": (*with_columns('sick = ["no", "yes"]'), ["columns must describe a feature"]),
    "unknown column": (*with_columns("weight = [1, 2]"), ["columns must be a column of the table", "weight"]),
    "line break in a key": (*with_columns('"a\\nb" = [1, 2]'), ["columns must have names that can be printed"]),
    "one bound": (*with_columns("age = [20]"), ["got age = [20]"]),
    "three bounds": (*with_columns("age = [20, 50, 80]"), ["got age = [20, 50, 80]"]),
    "bounds exchanged": (*with_columns("age = [80, 20]"), ["LOW < HIGH", "age = [80, 20]"]),
    "bounds equal": (*with_columns("age = [20, 20]"), ["LOW < HIGH", "age = [20, 20]"]),
    "infinite bound": (*with_columns("age = [20, inf]"), ["LOW < HIGH", "age = [20, inf]"]),
    "NaN bound": (*with_columns("age = [nan, 80]"), ["LOW < HIGH", "age = [nan, 80]"]),
    "truth bound": (*with_columns("age = [false, true]"), ["got age = [False, True]"]),
    "bounds in text": (*with_columns('age = "20:80"'), ["got age = 20:80"]),
    "private texts": (*with_columns('sex = "private"'), ["'sex', not \"private\", whose row 1 is no number", "'f'"]),
    "private, misspelt": (*with_columns('age = "privat"'), ["got age = privat"]),
    "private label": (*with_columns(COLUMNS + 'sick = "private"'), ["bounds for 'sick'"]),
    "private client": (*with_columns('site = "private"'), ["not clients or persons", "'site'"]),
    "private in a list of numbers": (*with_columns('age = [20, "private"]'), ["got age = [20, 'private']"]),
    "bounds in a table": (*with_columns("[age]\nlow = 20"), ["got age = {'low': 20}"]),
    "mixed list": (*with_columns('sex = ["f", 1]'), ["got sex = ['f', 1]"]),
    "no values": (*with_columns("sex = []"), ["got sex = []"]),
    "value twice": (*with_columns('sex = ["f", "f"]'), ["each once", "sex = ['f', 'f']"]),
    "empty value": (*with_columns('sex = ["f", ""]'), ["none empty", "sex = ['f', '']"]),
    "line break in a value": (*with_columns(r'sex = ["f", "a\nb"]'), ["printable values", r"sex = ['f', 'a\nb']"]),
    "bounds for texts": (*with_columns("sex = [0, 1]"), ["'sex', whose row 1 is no number", "'f'"]),
    "values that never occur": (*with_columns('sex = ["female", "male"]'), ["values that occur", "sex ="]),
    "bounds that nothing reaches": (*with_columns("chol = [2, 9]"), ["got chol = [2, 9]"]),
    "client as feature": (*with_columns('site = ["north"]'), ["not clients or persons", "'site'"]),
    "comma as point": (
        text(column(rows(60), "age", lambda i: '"41,5"' if i == 7 else "40")), COLUMNS, OWN, ["row 8", "'41,5'"],
    ),
    "infinite cell": (
        text(column(rows(60), "age", lambda i: "inf" if i == 7 else "40")), COLUMNS, OWN, ["row 8 of column 'age'"],
    ),
    # what is held out
    "nothing held out": (GOOD, COLUMNS, [*TABLE, "--test-fraction", "0"], ["test_fraction must be in (0, 1)"]),
    "all held out": (GOOD, COLUMNS, [*TABLE, "--test-fraction", "1"], ["test_fraction must be in (0, 1)"]),
    "too little held out": (GOOD, COLUMNS, [*TABLE, "--test-fraction", "0.01"], ["got test_fraction=0.01"]),
}  # fmt: skip


def test_there_are_sixty_wrong_tables() -> None:
    assert len(WRONG) >= 60


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_ends_in_one_line_that_names_option_and_value(tmp_path: Path, run: Run, name: str) -> None:
    table, columns, flags, words = WRONG[name]
    saved(tmp_path, table, columns)
    assert words
    assert_refused(run("run", "--data", "t.csv", *flags, "--out", "run.jsonl"), *words)
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize(
    ("arrays", "flags", "words"),
    [
        ({"x": np.zeros((9, 2)), "sick": np.zeros(9)}, TABLE, "x must be one column"),
        ({"age": np.zeros(9), "sick": np.zeros(8)}, TABLE, "differ in length"),
        ({"age": np.zeros(9, complex), "sick": np.zeros(9)}, TABLE, "complex128"),
        ({"x": np.zeros((9, 2)), "y": np.arange(9) % 2}, ["--client-column", "site"], "client_column='site'"),
        (
            {"x": np.zeros((9, 2)), "y": np.arange(9) % 2, "site": np.zeros(8)},
            ["--client-column", "site"],
            "client_column must have 9 cells",
        ),
        ({"x": np.zeros((9, 2)), "y": np.arange(9) % 2}, ["--columns", "columns.toml"], "columns needs label"),
    ],
)
def test_a_wrong_npz_ends_in_one_line(tmp_path: Path, run: Run, arrays: Any, flags: list[str], words: str) -> None:
    saved(tmp_path, "")
    np.savez(tmp_path / "t.npz", **arrays)
    assert_refused(run("run", "--data", "t.npz", *flags), words)
