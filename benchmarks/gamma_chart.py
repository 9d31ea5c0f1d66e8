"""What the study of γ found: tables from its records, and the chart docs/img/gamma.svg.

python benchmarks/gamma_chart.py [benchmarks/records/gamma-*.json] [--plot docs/img/gamma.svg]

`benchmarks/gamma.py` makes the records, `benchmarks/gamma_tables.py` says what the figures are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from gamma_tables import RULES, by_weight, error, kinds, tables
from lightdp.report import SOFT, TONES, Chart, heading, save, sheet

ROOT = Path(__file__).parent
PICTURE = ROOT.parent / "docs/img/gamma.svg"
TITLES = {"digits": "Digits, linear", "fashion-mnist": "Fashion-MNIST, scattering + linear",
          "cifar10": "CIFAR-10, scattering + linear"}  # fmt: skip
COLOURS = {"0": TONES["grey"], "0.5": TONES["violet"], "0.9": TONES["orange"], "0.95": TONES["blue"],
           "0.9, averaged": TONES["teal"]}  # fmt: skip
TICKS, LOWEST = (1.5, 3, 5, 8, 12, 22, 50), -3.0  # points: what lies lower is cut off


def rows(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The points of a panel, in percentage points ahead of SMPC+DP, and where the rule's γ lies on each line."""
    for kind, curve in kinds(record["runs"]):
        momentum, ema, delay = kind["momentum"], kind["ema"], kind["delay"]
        if delay != 1:
            continue
        chosen = by_weight(record["settings"], RULES["the rule"](momentum, ema, delay))
        for gamma in (*curve.gammas, chosen):
            ahead = curve.ahead(gamma)
            if ahead is None:
                continue
            spread = 0.0 if math.isnan(error(ahead)) else error(ahead)
            mean = float(ahead.mean())
            name = f"{momentum:g}" + (", averaged" if ema else "")
            beside = 1.02 ** (list(COLOURS).index(name) - 2)  # so that bars do not hide each other
            at = {"momentum": name, "gamma": gamma * beside, "ahead": mean}
            yield at | {
                "low": mean - spread, "high": mean + spread, "seeds": len(curve.seeds), "rule": gamma == chosen
            }  # fmt: skip


def panel(record: dict[str, Any]) -> alt.LayerChart:
    """Accuracy against γ on one data set."""
    found = list(rows(record))
    lowest = max(math.floor(2 * min(row["low"] for row in found)) / 2, LOWEST)
    scale = alt.Scale(domain=[lowest, math.ceil(2 * max(row["high"] for row in found)) / 2], nice=False)
    y = alt.Y("ahead:Q", title=None, scale=scale)
    x = alt.X(
        "gamma:Q", title="γ", scale=alt.Scale(type="log", domain=[1.3, 58]), axis=alt.Axis(grid=False, values=TICKS)
    )
    names = [name for name in COLOURS if any(row["momentum"] == name for row in found)]
    legend = alt.Legend(title="server's momentum", orient="top", symbolType="stroke", symbolStrokeWidth=3)
    colour = alt.Color("momentum:N", legend=legend, scale=alt.Scale(domain=names, range=[COLOURS[n] for n in names]))

    def layer(*, rule: bool) -> alt.Chart:
        return alt.Chart(alt.Data(values=[row for row in found if row["rule"] is rule])).encode(x=x, color=colour)

    zero = alt.Chart(alt.Data(values=[{}])).mark_rule(color=SOFT, strokeDash=[5, 4]).encode(y=alt.datum(0))
    bars = layer(rule=False).mark_rule(strokeWidth=1.2, opacity=0.6, clip=True).encode(
        y=alt.Y("low:Q", scale=scale, title=None), y2="high:Q"
    )  # fmt: skip
    line = layer(rule=False).mark_line(strokeWidth=2, clip=True).encode(y=y)
    dots = layer(rule=False).mark_point(size=16, filled=True, opacity=1, clip=True).encode(y=y)
    mark = layer(rule=True).mark_point(size=110, shape="diamond", fill="white", strokeWidth=2.2, opacity=1).encode(y=y)
    settings, seeds = record["settings"], sorted({row["seeds"] for row in found})
    told = f"{settings['clients']} clients, {settings['rounds']} rounds, " + (
        "1 seed, so no bars"
        if seeds == [1]
        else f"{seeds[0]} seeds"
        if len(seeds) == 1
        else f"{seeds[0]} to {seeds[-1]} seeds"
    )
    title = heading(TITLES[record["data"]], told, size=13)
    return alt.layer(zero, bars, line, dots, mark).properties(width=280, height=240, title=title)


def chart(records: Sequence[dict[str, Any]]) -> Chart:
    """A panel for each data set, a line for each momentum, SMPC+DP at zero."""
    title = heading(
        "Accuracy against γ under repair",
        "Percentage points ahead of SMPC+DP (dashed) with the same seeds and momentum; ε = 3 for all rounds.",
        "Each point at its best learning rate; bars are one standard error of the paired difference.",
        "Diamonds: the γ that plans choose. Averaged: weights averaged with decay 0.95.",
    )
    shown = alt.hconcat(*map(panel, records), spacing=30).resolve_scale(color="shared", y="independent")
    return sheet(shown.properties(title=title))


def main() -> None:
    """Print the tables and draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = [ROOT / f"records/gamma-{name}.json" for name in TITLES]
    parser.add_argument("records", type=Path, nargs="*", default=kept)
    parser.add_argument("--plot", type=Path, default=PICTURE)
    given = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in given.records]
    for record in records:
        print("\n".join(tables(record)))
    save(chart(records), given.plot)


if __name__ == "__main__":
    main()
