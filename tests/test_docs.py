from __future__ import annotations

import json
import re
import runpy
import statistics
from importlib import import_module
from typing import Any

import pytest

import lightdp
from lightdp._validate import rounded_up
from support.docs import PAGES, ROOT

README = ROOT / "README.md"
ACCURACY = ROOT / "docs/evidence/accuracy.md"
SPEED = ROOT / "docs/evidence/speed.md"
LABEL = re.compile(r"\(([EDRPWCS])(\d)(?:-\1?(\d)|\)-\(\1(\d))?\)")


def labels(text: str) -> set[str]:
    """(E1), (P1-P3) and (R1)-(R2), spelt out."""
    found = set()
    for kind, first, last, other in LABEL.findall(text):
        found |= {f"{kind}{k}" for k in range(int(first), int(last or other or first) + 1)}
    return found


def defined() -> set[str]:
    return set(re.findall(r"^\*\*\(([EDRPWCS]\d)\)", (ROOT / "docs/theory.md").read_text(), flags=re.MULTILINE))


def test_theory_defines_every_label_once_and_in_order() -> None:
    found = re.findall(r"^\*\*\(([EDRPWCS]\d)\)", (ROOT / "docs/theory.md").read_text(), flags=re.MULTILINE)
    assert len(found) == len(set(found))
    for kind in "EDRPWCS":
        numbers = [int(label[1]) for label in found if label[0] == kind]
        assert numbers == sorted(numbers)


def test_every_label_is_cited_in_code_and_every_cited_label_is_defined() -> None:
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    assert labels(sources) == defined()
    for page in PAGES:
        assert labels(page.read_text()) <= defined()


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", (ROOT / "docs/explanation/threat-model.md").read_text())
    assert len(named) > 15
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_pictures_of_a_round_are_as_drawn() -> None:
    for script, image in (("draw_round.py", "round.svg"), ("draw_cancel.py", "cancel.svg")):
        drawn = runpy.run_path(str(ROOT / "docs" / script))["picture"]()
        assert (ROOT / "docs/img" / image).read_text() == drawn, f"python docs/{script}"


@pytest.mark.parametrize("record", ["digits", "fashion-mnist"])
def test_accuracies_on_small_data_are_those_of_the_records(record: str) -> None:
    measured = json.loads((ROOT / f"benchmarks/records/{record}.json").read_text())["epsilon"]["3"]
    titles = {
        "none": "no noise",
        "central": "central DP",
        "smpc": "SMPC",
        "paper": "LightDP, paper's",
        "local": "local DP",
    }
    for scheme, row in measured.items():
        spent = "-" if row["epsilon"] is None else rounded_up(row["epsilon"], 2)
        shown = f"{100 * row['accuracy']:.1f} ± {100 * row['spread']:.1f} | {spent}"
        title = titles.get(scheme, f"LightDP, {scheme}")
        assert re.search(rf"^\| {re.escape(title)}.*\| {re.escape(shown)} \|", ACCURACY.read_text(), re.MULTILINE), (
            shown
        )


def test_accuracies_of_cohorts_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks/records/cohorts.json").read_text())
    rows = {(row["way"], row["epsilon"]): row for row in record["summary"]}
    shown = {key: f"{100 * row['accuracy']:.1f} ± {100 * row['error']:.1f}" for key, row in rows.items()}
    assert {row["seeds"] for row in rows.values()} == {20}
    assert (
        f"20 of 100 in turn reach {shown['cohorts', 8.0]} % at ε = 8 and {shown['cohorts', 2.0]} % at ε = 2, all 100 "
        f"in a fifth of the rounds {shown['all 100', 8.0]} and {shown['all 100', 2.0]} %, the same 20 in every round "
        f"{shown['the same 20', 8.0]} and {shown['the same 20', 2.0]} %."
    ) in ACCURACY.read_text()
    assert rows["cohorts", 8.0]["played"] == rows["the same 20", 8.0]["played"] == record["rounds"]
    assert 5 * rows["all 100", 8.0]["played"] == record["rounds"]


def test_schedules_of_federations_are_counted_as_in_the_record() -> None:
    record = json.loads((ROOT / "benchmarks/records/fuzz_federation.json").read_text())
    assert record["findings"] == 0
    assert record["schedules"] == sum(record["by case"].values())
    shown = "In {schedules:,} schedules of whole federations, with {rosters:,} rosters and {crashes:,} crashes "
    shown += "of the server, and {left_out:,} uploads that were left out"
    assert shown.format(**record) in (ROOT / "docs/explanation/how-it-works.md").read_text()


def test_times_of_the_core_are_those_of_the_record() -> None:
    rows = json.loads((ROOT / "benchmarks/records/core.json").read_text())["rows"][:3]
    plan, exact, design = (row["median_s"] for row in rows)
    for shown in (
        f"| plan for a million clients | {1000 * plan:.1f} ms |",
        f"| exact noise of each of 2,000 clients on a graph | {exact:.2f} s |",
        f"| design for 100 different clients | {design:.1f} s |",
    ):
        assert shown in SPEED.read_text()


def test_start_up_times_are_those_of_the_record() -> None:
    rows = json.loads((ROOT / "benchmarks/records/startup.json").read_text())["rows"]
    shown = ", ".join(f"{row['minimum_s']:.2f} s" for row in rows)
    row = f"| CPU time of `lightdp --help`, and of `lightdp plan --json` | {shown} | AMD |"
    assert row in SPEED.read_text()
    assert all(row["holds"] for row in rows)


def test_noise_ratios_are_those_of_the_plan() -> None:
    asked: dict[str, Any] = {
        "clients": 50,
        "colluders": 10,
        "stragglers": 10,
        "rounds": 150,
        "epsilon": 3,
        "delta": 1e-5,
    }
    settings: tuple[dict[str, Any], ...] = (
        {}, {"calibration": "smpc"}, {"ema": 0.95}, {"calibration": "local"}, {"grace": 1}, {"wire_steps": 16},
    )  # fmt: skip
    auto, smpc, averaged, local, grace, fine = (lightdp.plan(**asked, **more).noise_in_mean() for more in settings)
    for shown in (
        f"LightDP with repair leaves {auto / smpc:.2f} times the noise of secure aggregation",
        f"{averaged / smpc:.2f} times where weights are averaged (`--ema 0.95`)",
        f"and {local / auto:.0f} times less than local DP",
        f"it costs noise, {grace / auto - 1:.0%} for the plan at the top of this page".replace("%", " %"),
    ):
        assert shown in ACCURACY.read_text()
    finer = f"| `--wire-steps 16` | rounds finer, for {1 - fine / auto:.0%} less".replace("%", " %")
    assert finer in (ROOT / "docs/tutorials/planning.md").read_text()


def test_how_long_plans_last_and_what_signing_takes_are_those_of_the_records() -> None:
    lasting, upload = (
        json.loads((ROOT / f"benchmarks/records/{name}.json").read_text()) for name in ("lasting", "upload")
    )
    assert lasting["trainings"] == 1000
    least = min(cell["lasted"] for cell in lasting["cells"])
    assert (
        f"all rounds in at least {1000 * least:.0f} of 1,000 trainings" in (ROOT / "docs/how-to/train.md").read_text()
    )
    shares = {row["clients"]: f"{100 * row['upload']['share']:.1f} %" for row in upload["rows"]}
    seconds, hashing = upload["rows"][-1]["upload"]["signature_s"], upload["rows"][-1]["sha256_s"]
    taken = f"{1e3 * seconds:.1f} ms, {seconds / hashing:.1f} of SHA-256"
    assert f"| {taken} of its bytes alone ({shares[50]} of the upload among 50 clients, " in SPEED.read_text()
    assert f"{shares[20]} among 20, {shares[10]} among 10) |" in SPEED.read_text()
    for row in upload["wires"][1:]:
        rotated, plain = (row["wires"][name] for name in ("σ_U/2, rotated", "σ_U/16"))
        longer = f"{100 * abs(rotated['upload_share']):.1f} % {'longer' if rotated['upload_share'] > 0 else 'shorter'}"
        bits = f"({rotated['bits']} beside {plain['bits']} bits)"
        assert re.search(rf"{longer} among {row['clients']}( clients)? {re.escape(bits)}", SPEED.read_text())


def test_the_speed_of_noise_is_that_of_the_records() -> None:
    masks, paths = (
        json.loads((ROOT / f"benchmarks/records/{name}.json").read_text()) for name in ("masks", "mask-paths")
    )
    rates, whole = masks["rates"]["methods"], masks["client_round"]["methods"]["upload"]
    best, wide, narrow = (rates[path] for path in ("vaes512", "vaes", "aesni"))
    for shown in (
        "| {:.0f} × as fast ({:.0f} × without AVX-512, {:.0f} × with AES-NI alone) |".format(
            *(each["x_philox"] for each in (best, wide, narrow))
        ),
        "| {:.2f} × as fast ({:.2f} × without AVX-512, {:.2f} × with AES-NI alone) |".format(
            *(each["x_uniform"] for each in (best, wide, narrow))
        ),
        f"| {whole['x_philox']:.0f} × as fast ({whole['seconds']:.2f} s) |",
        "| {:.0f} × as fast, {:.0f} × without AVX-512, {:.0f} × with AES-NI alone |".format(
            *(paths["methods"][path]["x_philox"] for path in ("vaes512", "vaes", "aesni"))
        ),
    ):
        assert shown in SPEED.read_text()
    for path in ("vaes512", "vaes", "aesni"):
        few, many = (1e3 * paths["methods"][path]["million_s"][clients] for clients in ("10", "30"))
        assert f"| `{path}` | {few:.2g} | {many:.2g} |" in (ROOT / "docs/how-to/flower.md").read_text()


def test_the_speed_of_drawn_noise_is_that_of_the_record() -> None:
    record, text = json.loads((ROOT / "benchmarks/records/drawn.json").read_text()), SPEED.read_text()
    shown = "| {} × as fast ({} × without AVX-512, {} × with AES-NI alone, {} × in numpy) |"
    for part, ratio, digits in (("rates", "x_gaussian", 1), ("uploads", "x_philox", 0)):
        rows = [record[part]["paths"][path]["drawn"] for path in ("vaes512", "vaes", "aesni", "numpy")]
        assert shown.format(*(f"{row[ratio]:.{digits}f}" for row in rows)) in text


def test_work_with_drawn_masks_is_that_of_the_record() -> None:
    """And least of all with DP against the server, local DP aside, where the page says so."""
    record = json.loads((ROOT / "benchmarks/records/compare-drawn.json").read_text())
    text = (ROOT / "docs/evidence/comparison.md").read_text()
    for title, scheme in {
        "LightDP, repair, drawn masks": "repair",
        "pairwise encryption": "pairwise",
        "SecAgg+ + DP": "secagg+",
        "SwiftAgg+ + DP": "swiftagg+",
    }.items():
        shown = (
            1e3 * min(row["client"] for row in record[d][path]["rows"] if row["scheme"] == scheme)
            for d in ("100000", "1000000")
            for path in ("vaes512", "vaes")
        )
        assert f"| {title} | {' | '.join(f'{each:.3g}' for each in shown)} |" in text
    least = {}
    for d in ("100000", "1000000"):
        for path in ("vaes512", "vaes"):
            rows = [row for row in record[d][path]["rows"] if row["scheme"] not in {"local", "exact", "exact-sparse"}]
            work = {row["scheme"]: row["client"] for row in sorted(rows, key=lambda row: -row["client"])}
            least[d, path] = min(work, key=work.__getitem__) == "repair"
    assert [*least.values()] == [True, True, True, False]


@pytest.mark.parametrize(
    ("clients", "colluders", "rounds", "words"),
    [
        (50, 10, 140, "50 clients with 10 colluders and 10 stragglers from 140 rounds on"),
        (100, 20, 100, "for 100 with 20 and 20 from about 100 rounds on"),
        (50, 5, None, "and not for 50 with 5 and 5"),
    ],
)
def test_masks_are_drawn_where_the_page_says(clients: int, colluders: int, rounds: int | None, words: str) -> None:
    assert words in (ROOT / "docs/how-to/choose.md").read_text()
    asked: dict[str, Any] = {"clients": clients, "colluders": colluders, "stragglers": colluders}
    asked |= {"epsilon": 3.0, "delta": 1e-5}
    if rounds is None:
        assert lightdp.plan(**asked, rounds=1000).masks.kind == "gaussian"
        return
    few = rounds - 1 if "about" not in words else rounds - 5
    assert lightdp.plan(**asked, rounds=few).masks.kind == "gaussian"
    assert lightdp.plan(**asked, rounds=rounds).masks.kind == "drawn"


FLOWER = {
    "plain FedAvg": "plain", "Flower's LocalDpMod": "local", "Flower's SecAgg+ (no DP)": "secagg+",
    "lightdp, exact": "exact", "lightdp, repair": "repair",
}  # fmt: skip


@pytest.mark.parametrize(("title", "method"), FLOWER.items())
def test_the_table_beside_flower_is_that_of_the_record(title: str, method: str) -> None:
    record = json.loads((ROOT / "benchmarks/records/flower.json").read_text())["clients"]
    few, many = (record[clients][method] for clients in ("10", "30"))
    times = " | ".join(f"{each['seconds']:.2f} ({each['x_plain']:.2f} ×)" for each in (few, many))
    begin = f"| {title} | {times} | {few['bytes_up'] / 1e6:.1f} | {few['trips']} | "
    (row,) = (line for line in ACCURACY.read_text().splitlines() if line.startswith(begin))
    assert row.split(" | ")[-1].startswith(f"{100 * statistics.mean(few['accuracy']):.0f} %")


def test_how_far_sums_are_rounded_is_that_of_the_record() -> None:
    rows = json.loads((ROOT / "benchmarks/records/rounding.json").read_text())["rows"]
    linear, cnn, wrn = (f"{row['clips']:.0e}".replace("e-0", "e-") for row in rows)
    assert (
        f"{linear} clips for 20,000 records of a linear model, {cnn} for 2,000 of `cnn`, {wrn} for 300 of WRN-16-4"
        in (ROOT / "docs/theory.md").read_text()
    )


def test_cells_are_counted_as_the_results_do() -> None:
    summary = (ROOT / "docs/evidence/results.md").read_text().split("<!-- begin tables-gain -->\n")[1]
    found = re.match(r"Repair is above SMPC \+ DP in (\d+ of \d+ cells), level with it in (\d+)\. ", summary)
    assert found is not None  # and below it in none
    above, level = found.groups()
    text = ACCURACY.read_text()
    assert f"repair is above SMPC + DP in {above}," in text
    assert f"and level in the {level} without stragglers" in text


def models() -> str:
    """The table of models in the results."""
    return (ROOT / "docs/evidence/results.md").read_text().split("<!-- begin models -->\n")[1].split("<!-- end -->")[0]


def test_the_page_on_accuracy_has_the_table_of_models_of_the_results() -> None:
    assert f"\n\n{models()}\n" in ACCURACY.read_text()


def test_accuracies_in_the_readme_are_those_of_the_results() -> None:
    shown = re.findall(
        r"^\| \**([\w ,+]+?)\**(?: \(.*?\))? \| (\S+ ± \S+) % \|", README.read_text(), flags=re.MULTILINE
    )
    assert len(shown) == 5
    for scheme, accuracy in shown:
        assert re.search(
            rf"^\| scattering \+ linear.*\| {re.escape(scheme)}.*?\| {accuracy} \|", models(), re.MULTILINE
        )


def test_accuracies_from_a_start_in_the_readme_are_those_of_the_results() -> None:
    text = README.read_text()
    shown = re.search(r"reaches ([\d., and]+) % at budgets ([\d, and]+) \(.*?, (\w+) trials? each;", text)
    assert shown is not None
    accuracies, budgets = (re.findall(r"[\d.]+\d|\d", part) for part in shown.groups()[:2])
    trials = ["", "one", "two", "three"].index(shown[3])
    table = (ROOT / "docs/evidence/results.md").read_text().split("<!-- begin prior -->\n")[1].split("<!-- end -->")[0]
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.strip().splitlines())
    [row] = (row for row in rows if row[1] == "WRN-16-4, LightDP, repair")
    assert [f"ε = {budget}" for budget in budgets] == [
        name for name, cell in zip(head, row, strict=True) if name.startswith("ε") and cell not in {"", "–"}
    ]
    for budget, accuracy in zip(budgets, accuracies, strict=True):
        assert re.fullmatch(rf"{accuracy}( ± \S+)? \({trials}\)", row[head.index(f"ε = {budget}")])


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900


def test_what_a_budget_means_and_costs_is_that_of_its_plans() -> None:
    text = (ROOT / "docs/how-to/choose.md").read_text()
    asked: dict[str, Any] = {"clients": 50, "stragglers": 10, "rounds": 150}
    for epsilon in (0.5, 1, 3, 8):
        plan = lightdp.plan(**asked, colluders=10, epsilon=epsilon, delta=1e-5)
        found = re.search(r"finds\s+at\s+most\s+(\S+)\s+%", str(plan))
        assert found is not None
        assert re.search(rf"^\| {epsilon} \| {found[1]} %.* \| {plan.noise_in_mean():.2f} \|", text, re.MULTILINE)
    noise = [lightdp.plan(**asked, colluders=c, epsilon=3, delta=1e-5).noise_in_mean() for c in (0, 10, 20, 30)]
    none, some, more, many = (f"{one:.2f}" for one in noise)
    assert f"{none} with no colluder, {some} with 10, {more} with 20 and {many} with 30" in text
    multipliers = [lightdp.plan(**asked, colluders=10, epsilon=3, delta=d).noise_multiplier for d in (1e-5, 1e-6)]
    assert f"grows by {100 * (multipliers[1] / multipliers[0] - 1):.0f} % at ε = 3" in text


def test_every_promised_name_is_on_the_page_of_the_api() -> None:
    listed = re.findall(r"^::: lightdp\.(\S+)", (ROOT / "docs/reference/api.md").read_text(), flags=re.MULTILINE)
    names = {name.rpartition(".")[2] for name in listed}
    assert names >= set(lightdp.__all__) - {"errors", "flower"}
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert attribute in dir(import_module(f"lightdp.{module}"))


def test_the_glossary_has_every_label_of_the_theory() -> None:
    text = (ROOT / "docs/explanation/glossary.md").read_text()
    assert labels(text) == defined()
