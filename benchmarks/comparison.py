"""Fill docs/evidence/comparison.md and draw its picture from a record, so that no number there is typed by hand.

lightdp compare --rounds-played 20 --seconds 8 --scaling --json > benchmarks/records/compare.json
python benchmarks/comparison.py

With --check nothing is written, and it fails if the page is not what the record says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp import Request
from lightdp._validate import rounded_up
from lightdp.report import save
from lightdp_lab.charts.compare import compare_chart
from lightdp_lab.compare_words import broke, figure
from lightdp_lab.schemes import Grid, Smpc, Task
from lightdp_lab.tables import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks/records/compare.json"
PAGE = ROOT / "docs/evidence/comparison.md"
PICTURE = ROOT / "docs/img/compare.svg"
OURS = ("paper", "exact", "exact-sparse", "repair")
ALONE = ("local", "local-paper")
FAMILIES = {
    "local DP": ALONE,
    "pairwise encryption": ("pairwise",),
    "SecAgg + DP": ("secagg", "secagg+", "dordis"),
    "coded SecAgg + DP": ("lightsecagg", "swiftagg+"),
    "HE + DP": ("paillier", "ckks"),
    "LightDP-FL as published": ("paper",),
    "LightDP, exact": ("exact",),
    "LightDP, exact, sparse": ("exact-sparse",),
    "LightDP, repair": ("repair",),
}
"""The families of the paper's Table 1, and which of our schemes stand for them."""

Row = dict[str, Any]


def page(text: str, record: dict[str, Any]) -> str:
    """The page `text`, each block between its marks made anew."""
    rows = [row for row in record["rows"] if row["impossible"] is None]
    blocks = {
        "command": command(record),
        "families": families(rows),
        "remarks": "\n".join(f"- {remark}" for remark in remarks(rows, record)),
        "schemes": schemes(rows),
        "scaling": scaling(record),
    }
    return filled(text, blocks)


def command(record: dict[str, Any]) -> str:
    """How the record was made, and what it speaks of."""
    at, where = record["setting"], record["conditions"]
    names = (
        "clients",
        "colluders",
        "stragglers",
        "dimension",
        "epsilon",
        "rounds_played",
        "dropout",
        "seconds",
        *(["cell_seconds"] if record["scaling"] and "cell_seconds" in at else []),
        "seed",
    )
    flags = " ".join(f"--{name.replace('_', '-')} {at[name]:.10g}" for name in names)
    law = at.get("straggler_law", "uniform")
    flags += f" --link-failure {at['failure']:g} --straggler-law {law}" + (" --scaling" if record["scaling"] else "")
    made = f"lightdp compare {flags} --json > benchmarks/records/compare.json\npython benchmarks/comparison.py"
    text = (
        f"{at['clients']} clients, of which {at['colluders']} may collude with the server and {at['stragglers']} may "
        f"be missing; {at['dimension']:,} values, clip {at['clip']:g}; ε = {at['epsilon']:g} at δ = {at['delta']:g} "
        f"for a client over {at['rounds']} rounds. LightDP's noise, exact and with repair, is tuned to stragglers by "
        f"the law {law}. "
        f"Each link is down for a whole round with probability {at['failure']:g}, each client falls silent at some "
        f"stage of it with {at['dropout']:g}, and {at['rounds_played']} such rounds are played. "
        f"Links carry {at['uplink'] / 1e6:g} Mbit/s up and {at['downlink'] / 1e6:g} down, {1e3 * at['latency']:g} ms "
        f"one way; work is of one thread on {where['cpu']}, {where['cores']} cores at a load of {where['load']}, "
        f"{where['date'][:10]}."
    )
    return f"```sh\n{made}\n```\n\n{text}"


def cells(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(head)
    rows = [" | ".join(names), " | ".join(["---"] * len(names)), *(" | ".join(line) for line in lines)]
    return "\n".join(f"| {row} |" for row in rows)


def title(row: Row) -> str:
    """With its links, where they matter."""
    return row["title"] + ("" if row["links"] == "any" else f", {row['links']}")


def peers(row: Row) -> str:
    """With how many a client shares masks, where it is known."""
    return "" if row.get("degree") is None else f", {row['degree']} peers"


def traffic(row: Row) -> float:
    """kB of a client in a round."""
    return (row["up"] + row["down"] + row["peer"]) / 1e3


def mark(*rows: Row) -> str:
    """Of what was not measured."""
    return "" if all(row["measured"] for row in rows) else "~"


def span(rows: list[Row], value: Callable[[Row], float], approximate: str = "") -> str:
    """From the least to the most."""
    low, high = (figure(found) for found in (min(map(value, rows)), max(map(value, rows))))
    return approximate + (low if low == high else f"{low} to {high}")


def families(rows: list[Row]) -> str:
    """The paper's Table 1."""
    head = ("family", "noise", "true ε of its own σ", "rounds done", "trips", "client kB", "client s", "round s")
    lines = []
    for family, names in FAMILIES.items():
        found = [row for row in rows if row["scheme"] in names]
        if found:
            shares = sorted({f"{100 * row['completed'] / row['rounds']:.3g}" for row in found}, key=float)
            costs = [
                span(found, value, mark(*found))
                for value in (traffic, lambda row: row["client"], lambda row: row["modelled"])
            ]
            noise, true = span(found, lambda row: row["noise"]), span(found, lambda row: row["epsilon"])
            trips = span(found, lambda row: row["trips"])
            lines.append(
                (family, noise, true, f"{' to '.join(dict.fromkeys((shares[0], shares[-1])))} %", trips, *costs)
            )
    return cells(head, lines)


def schemes(rows: list[Row]) -> str:
    """Every scheme and kind of links."""
    head = ["scheme", "source", "done", "noise", "trips", "up kB", "down kB", "peer kB", "set-up kB"]
    head += ("client s", "server s", "round s", "what broke it", "what would")
    lines = []
    for row in rows:
        measured = "" if row["noise_measured"] is None else f" ({figure(row['noise_measured'])})"
        once = sum(row["set_up"][name] for name in ("up", "down", "peer")) / 1e3
        lines.append(
            (
                title(row) + peers(row),
                row["source"],
                f"{row['completed']}/{row['rounds']}",
                figure(row["noise"]) + measured,
                f"{row['trips']:g}",
                *(figure(row[name] / 1e3, mark(row)) for name in ("up", "down", "peer")),
                figure(once),
                *(figure(row[name], mark(row)) for name in ("client", "server", "modelled")),
                broke(row) or "–",
                row["broken_by"],
            )
        )
    return cells(head, lines)


def remarks(rows: list[Row], record: dict[str, Any]) -> list[str]:
    """What the numbers say, for us and against us; a sentence stands only where its numbers are there."""
    setting = record["setting"]
    by = {(row["scheme"], row["links"]): row for row in rows}
    one = {row["scheme"]: row for row in reversed(rows)}  # relayed, where there are both
    result = []
    if {"secagg", "paper", "repair", "exact"} <= set(one):
        secagg, paper, repair, exact = (one[name]["noise"] for name in ("secagg", "paper", "repair", "exact"))
        result.append(
            f"Noise of SMPC and of LightDP-FL as published: SecAgg {figure(secagg)}, LightDP-FL {figure(paper)}, "
            f"{paper / secagg:.3g} times as much at the same true ε, and {exact / secagg:.3g} times with exact "
            f"calibration (P6). With repair it is {figure(repair)}, {repair / secagg:.3g} times SecAgg's."
        )
    if "passing" in one.get("repair", {}):
        result.append(
            f"With repair a mean also holds noise of variance {figure(one['repair']['passing'])} that stragglers "
            f"leave, until the next round takes it out. No other scheme has noise that passes."
        )
    if "dordis" in one:
        result.append(
            f"Dordis leaves noise of {figure(one['dordis']['noise'])}, in {one['dordis']['trips']:g} trips: its "
            f"clients add SecAgg's noise for S̄ stragglers, and take out what fewer do not need."
        )
    if set(one) >= {"paper", "local-paper"}:
        true = [rounded_up(one[name]["epsilon"], 2) for name in ("paper", "local-paper")]
        result.append(
            f"The paper's own formulas miss ε: claimed {setting['epsilon']:g}, true {true[0]} for LightDP-FL and "
            f"{true[1]} for local DP (P1-P3). The noise in these tables is what a true ε takes."
        )
    both = [
        (row, by[name, "direct"]) for (name, links), row in by.items() if links == "relayed" and (name, "direct") in by
    ]
    if both:
        done = [[f"{row['completed']}/{row['rounds']}" for row in pair] for pair in both]
        listed = "; ".join(f"{pair[0]['title']} {a} and {b}" for pair, (a, b) in zip(both, done, strict=True))
        result.append(
            f"How often a scheme fails hangs on who carries its shares (P7). Rounds done when the server relays them, "
            f"as deployed systems do, and on direct links, as the paper assumes: {listed}."
        )
    result += cheapest(rows, record)
    if {"secagg+", "repair"} <= set(one):
        rival = min((row for row in rows if row["scheme"] == "secagg+"), key=traffic)
        result.append(coarser(rival, one["repair"], setting))
    if "ckks" in one:
        result.append(f"CKKS is here for its cost: {one['ckks']['broken_by']} breaks it.")
    return result


def cheapest(rows: list[Row], record: dict[str, Any]) -> list[str]:
    """LightDP's row of least work and that of least noise beside the best of the others, and where failures count."""
    fair = [row for row in rows if row["private"] and row["scheme"] not in ("paper", *ALONE) and row.get("spent")]
    ours, others = ([row for row in fair if (row["scheme"] in OURS) == mine] for mine in (True, False))
    if not ours or not others:
        return []
    result = [
        f"LightDP with the least {what}, {title(row)}{peers(row)}, beside the best other scheme with DP against the "
        f"server, local DP aside, for each round that came off: {_costs(row, others)}"
        for what, row in (
            ("work", min(ours, key=lambda row: row["spent"]["client"])),
            ("noise", min(ours, key=lambda row: row["noise"])),
        )
    ]
    lost = "; ".join(
        f"{title(row)} {row['completed']}/{row['rounds']}, {figure(1e3 * row['client'], mark(row))} ms a round and "
        f"{figure(1e3 * row['spent']['client'], mark(row))} ms a sum"
        for row in others
        if row["completed"] < row["rounds"]
    )
    if lost:
        result.append(f"Work in rounds that fail is paid for by those that do not: {lost}.")
    return result + _by_size(record, {row["scheme"]: row["title"] for row in fair})


def coarser(row: Row, ours: Row, setting: dict[str, Any]) -> str:
    """What a rival would send in LightDP's steps of σ/2, instead of its own of σ/16."""
    task = Task(**{field.name: setting[field.name] for field in dataclasses.fields(Task) if field.name in setting})
    sigma, steps = task.plan("smpc").sigma_individual, Request.wire_steps
    fine, coarse = (Grid.of(task, sigma, each) for each in (Smpc.steps, steps))
    bits, uploads = fine.bits - coarse.bits, row["used"] / task.clients
    sent = traffic(row) - bits * task.dimension / 8e3 * uploads
    noise = row["noise"] * (coarse.variance * coarse.step**2) / (fine.variance * fine.step**2)
    return (
        f"LightDP rounds to σ/{steps} of a client's noise, SecAgg and its kin to σ/{Smpc.steps}. At σ/{steps}, with "
        f"{bits} bits a value less, {title(row)}{peers(row)} would send and get about {figure(sent)} kB at noise "
        f"{figure(noise)}; {title(ours)} has {figure(traffic(ours))} kB, {traffic(ours) / sent:.3g} times as much, at "
        f"noise {figure(ours['noise'])}."
    )


def _costs(row: Row, others: list[Row]) -> str:
    values: dict[tuple[str, str], Callable[[Row], float]] = {
        ("work", " ms"): lambda row: 1e3 * row["spent"]["client"],
        ("traffic", " kB"): lambda row: row["spent"]["traffic"] / 1e3,
        ("round time", " s"): lambda row: row["modelled"] * row["rounds"] / row["completed"],
        ("noise", ""): lambda row: row["noise"],
    }
    least, words = [], []
    for (what, unit), value in values.items():
        best = min(others, key=value)
        words.append(f"{what} {_beside(value(row), value(best), unit)} ({title(best)}{peers(best)})")
        if value(row) < value(best) and what != "noise":
            least.append(what)
    verdict = f"It has the least {' and '.join(least)} of all." if least else "None of its costs is the least."
    return f"{'; '.join(words)}. {verdict}"


def _beside(ours: float, best: float, unit: str) -> str:
    times = f"{100 * (1 - ours / best):.2g} % less than" if ours < best else f"{ours / best:.3g} times"
    return f"{figure(ours)}{unit}, {times} {figure(best)}{unit}"


def _by_size(record: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """Where in d a client of ours has the least work."""
    found: dict[int, list[Row]] = {}
    for entry in record["scaling"]:
        if entry["clients"] == record["setting"]["clients"] and entry["scheme"] in titles:
            found.setdefault(entry["dimension"], []).append(entry)
    words = []
    for dimension, entries in sorted(found.items()):
        ours, others = ([one for one in entries if (one["scheme"] in OURS) == mine] for mine in (True, False))
        if ours and others:
            mine, best = (min(group, key=lambda one: one["client"]) for group in (ours, others))
            ratio = _beside(1e3 * mine["client"], 1e3 * best["client"], " ms")
            words.append(f"d = {dimension:,}: {titles[mine['scheme']]} {ratio} ({titles[best['scheme']]})")
    return [f"A client's work in one round against d, whether or not rounds fail: {'; '.join(words)}."] if words else []


def scaling(record: dict[str, Any]) -> str:
    """Round time by N, and by d."""
    if not record["scaling"]:
        return "Not measured yet."
    at = record["setting"]
    titles = {row["scheme"]: row["title"] for row in record["rows"]}
    tables = []
    for key, other, letter in (("clients", "dimension", "N"), ("dimension", "clients", "d")):
        found = {(entry["scheme"], entry[key]): entry for entry in record["scaling"] if entry[other] == at[other]}
        values = sorted({value for _, value in found})
        lines = []
        for scheme, name in titles.items():
            entries = [found.get((scheme, value)) for value in values]
            lines.append([name, *("–" if one is None else figure(one["modelled"], mark(one)) for one in entries)])
        tables.append(cells(["scheme", *(f"{letter} = {value:,}" for value in values)], lines))
    return "\n\n".join(tables)


def main() -> None:
    """Write the page and the picture, or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    before = PAGE.read_text(encoding="utf-8")
    after = page(before, record)
    if given.check:
        sys.exit(0 if before == after else f"{PAGE} is not what {RECORD} says: run {Path(__file__).name}")
    PAGE.write_text(after, encoding="utf-8")
    save(compare_chart(record), PICTURE)
    print(f"wrote {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main()
