"""What the study of γ found: a table from its records, and the chart docs/img/gamma.svg.

python benchmarks/gamma_chart.py [benchmarks/records/gamma-*.json]

For each momentum and γ the learning rate is that of the best mean accuracy, for SMPC+DP likewise. Standard errors are
those of the paired differences to SMPC+DP over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from lightdp.report import LOOK, Chart, save

ROOT = Path(__file__).parent
PICTURE = ROOT.parent / "docs/img/gamma.svg"
TITLES = {"digits": "Digits, linear", "fashion-mnist": "Fashion-MNIST, scattering + linear",
          "cifar10": "CIFAR-10, scattering + linear"}  # fmt: skip

SOFT, COLOURS = "#526077", ["#94a3b8", "#0ea5e9", "#d9480f", "#7c3aed"]
TICKS, LOWEST = (1, 2, 3, 5, 8, 12, 20, 30, 50), -4.0  # percentage points: what lies lower is cut off

Line = dict[str, Any]
Cell = dict[int, Line]
"""The runs of one setting by seed."""


class Point(NamedTuple):
    """A setting at its best learning rate: means over seeds and paired differences to SMPC+DP at its best.

    Attributes:
        gamma: γ; None for SMPC+DP.
        factor: of the usual learning rate, the best one.
        accuracy: its mean.
        loss: likewise.
        ahead: mean difference of accuracy.
        error: its standard error.
        loss_ahead: mean difference of loss; negative is better.
        loss_error: its standard error.
        seeds: how many seeds both have.
    """

    gamma: float | None
    factor: float
    accuracy: float
    loss: float
    ahead: float
    error: float
    loss_ahead: float
    loss_error: float
    seeds: int


def cells(runs: Sequence[Line], **wanted: Any) -> dict[float, Cell]:  # noqa: ANN401  values of settings
    """The runs of a setting by learning rate and seed."""
    found: dict[float, Cell] = {}
    for line in runs:
        if all(line[name] == value for name, value in wanted.items()):
            found.setdefault(line["factor"], {})[line["seed"]] = line
    most = max((len(cell) for cell in found.values()), default=0)
    return {factor: cell for factor, cell in found.items() if len(cell) == most}  # whole ones


def best(found: dict[float, Cell]) -> tuple[float, Cell]:
    """The learning rate of the best mean accuracy."""
    return max(found.items(), key=lambda each: statistics.fmean(line["accuracy"] for line in each[1].values()))


def point(found: dict[float, Cell], rival: dict[float, Cell]) -> Point:
    """A setting against a rival, each at its best."""
    (factor, ours), (_, theirs) = best(found), best(rival)
    seeds = sorted(ours.keys() & theirs.keys())
    differences = {
        kind: [(ours[seed][kind] or math.inf) - (theirs[seed][kind] or math.inf) for seed in seeds]
        for kind in ("accuracy", "loss")
    }
    means = {kind: statistics.fmean(ours[seed][kind] or math.inf for seed in seeds) for kind in differences}
    error = {
        kind: statistics.stdev(values) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
        for kind, values in differences.items()
    }
    line = ours[seeds[0]]
    return Point(
        line["gamma_used"] if line["scheme"] == "repair" else None, factor, means["accuracy"], means["loss"],
        statistics.fmean(differences["accuracy"]), error["accuracy"],
        statistics.fmean(differences["loss"]), error["loss"], len(seeds),
    )  # fmt: skip


def curve(runs: Sequence[Line], **setting: Any) -> tuple[Point, list[Point]]:  # noqa: ANN401  values of settings
    """SMPC+DP, and repair by γ, at one momentum, ema, schedule and delay."""
    rival = cells(runs, scheme="smpc", momentum=setting["momentum"], ema=setting["ema"])
    gammas = {line["gamma_used"]: line["gamma"] for line in runs if line["scheme"] == "repair"}
    ours = [
        point(found, rival)
        for _, gamma in sorted(gammas.items())
        if (found := cells(runs, scheme="repair", gamma=gamma, **setting))
    ]
    return point(rival, rival), ours


def tables(record: dict[str, Any]) -> Iterator[str]:
    """Lines of text: γ at each momentum, then what was varied beside it."""
    runs, data = record["runs"], record["data"]
    plain = {"schedule": "constant", "delay": 1}
    kinds = [{"momentum": momentum, "ema": 0.0} | plain for momentum in sorted({line["momentum"] for line in runs})]
    kinds += [{"momentum": 0.9, "ema": 0.95} | plain, {"momentum": 0.9, "ema": 0.0, "schedule": "constant", "delay": 2}]
    for kind in kinds:
        if not any(all(line[name] == value for name, value in kind.items()) for line in runs):
            continue
        smpc, ours = curve(runs, **kind)
        yield f"{data}, " + ", ".join(f"{name} {value}" for name, value in kind.items()) + f", {smpc.seeds} seeds"
        yield f"  SMPC+DP  {smpc.accuracy:.2%}  loss {smpc.loss:.4f}  lr × {smpc.factor:g}"
        yield from (f"  γ {each.gamma:6.2f} {_against(each)}" for each in ours)
    for ema in (0.0, 0.95):
        rival = cells(runs, scheme="repair", gamma=None, momentum=0.9, ema=ema, **plain)
        for schedule in sorted({line["schedule"] for line in runs} - {"constant"}):
            found = cells(runs, momentum=0.9, ema=ema, schedule=schedule, delay=1)
            if found and rival:
                yield f"{data}, noise {schedule} against constant, ema {ema}: {_against(point(found, rival))}"


def _against(each: Point) -> str:
    return (
        f"{each.accuracy:.2%} ({each.ahead:+.2%} ± {each.error:.2%})  loss {each.loss:.4f} "
        f"({each.loss_ahead:+.4f} ± {each.loss_error:.4f})  lr × {each.factor:g}"
    )


def rows(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The points of a panel, in percentage points ahead of SMPC+DP."""
    runs = record["runs"]
    for momentum in sorted({line["momentum"] for line in runs}):
        for each in curve(runs, momentum=momentum, ema=0.0, schedule="constant", delay=1)[1]:
            low, high = (100 * (each.ahead + way * each.error) for way in (-1, 1))
            at = {"momentum": f"{momentum:g}", "gamma": each.gamma, "ahead": 100 * each.ahead}
            yield at | {"low": low, "high": high, "seeds": each.seeds}


def chart(records: Sequence[dict[str, Any]]) -> Chart:
    """A panel for each data set, a line for each momentum, SMPC+DP at zero."""
    x = alt.X("gamma:Q", title="γ", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(grid=False, values=TICKS))
    colour = alt.Color("momentum:N", scale=alt.Scale(range=COLOURS), legend=alt.Legend(title="momentum", orient="top"))
    panels = []
    for record in records:
        found = list(rows(record))
        lowest = max(min(row["low"] for row in found), LOWEST)
        shown = [row | {"low": max(row["low"], lowest)} for row in found if row["ahead"] >= lowest]
        y = alt.Scale(domain=[lowest, max(0.1, *(row["high"] for row in found))], nice=True)
        base = alt.Chart(alt.Data(values=shown)).encode(x=x, color=colour)
        line = base.mark_line(strokeWidth=2.2, point={"size": 36}).encode(y=alt.Y("ahead:Q", title=None, scale=y))
        bars = base.mark_rule(strokeWidth=1.2).encode(y=alt.Y("low:Q", scale=y, title=None), y2="high:Q")
        zero = alt.Chart(alt.Data(values=[{}])).mark_rule(color=SOFT, strokeDash=[5, 4]).encode(y=alt.datum(0))
        settings, seeds = record["settings"], min(row["seeds"] for row in found)
        told = f"{settings['clients']} clients, {settings['rounds']} rounds, {seeds} seeds"
        title = alt.Title(TITLES[record["data"]], subtitle=told, anchor="start", fontSize=13, subtitleColor=SOFT)
        panels.append(alt.layer(zero, bars, line).properties(width=270, height=220, title=title))
    title = alt.Title(
        "Accuracy against γ under repair",
        subtitle=[
            "percentage points ahead of SMPC+DP (dashed) with the same seeds and momentum; ε = 3 for all rounds",
            "learning rate at its best for each point; bars are one standard error of the paired difference",
        ],
        anchor="start", fontSize=17, subtitleColor=SOFT, offset=12,
    )  # fmt: skip
    return alt.hconcat(*panels, spacing=30).properties(title=title).configure(**LOOK, padding=18, background="white")


def main() -> None:
    """Print the tables and draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "records", type=Path, nargs="*", default=[ROOT / f"records/gamma-{name}.json" for name in TITLES]
    )
    parser.add_argument("--plot", type=Path, default=PICTURE)
    given = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in given.records]
    for record in records:
        print("\n".join(tables(record)))
    save(chart(records), given.plot)


if __name__ == "__main__":
    main()
