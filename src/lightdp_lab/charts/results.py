"""The pictures of docs/results.md, from what `lightdp reproduce` found and from plans."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from lightdp.planning import plan
from lightdp.report import LOOK, Chart
from lightdp.schemes import BUILT_IN
from lightdp_lab.differences import ONE_ROUND
from lightdp_lab.registry import ALL, SCHEMES
from lightdp_lab.reproduce import EPSILONS, MIDDLE, TABLES, Profile, models
from lightdp_lab.results import Results
from lightdp_lab.tables import ANCHORS, MODELS, from_start, guaranteed, known, title, trials

Row = dict[str, Any]

_LETTERS = {"colluders": "C̄, colluders", "stragglers": "S̄, stragglers", "epsilon": "ε of one round"}
_GREY = "#526077"


def results_charts(results: Results) -> dict[str, Chart]:
    """The pictures of the page by name: "rounds", "models", "prior", "time" and "noise".

    Args:
        results: the kept runs; a picture without any is empty.
    """
    found = {"rounds": _round_rows(results), "models": _model_rows(results), "time": _time_rows(results)}
    found |= {"prior": _prior_rows(results)}
    draw = {"rounds": _rounds, "models": _models, "prior": _prior, "time": _time, "noise": _noise}
    charts = {}
    for name, rows in (found | {"noise": _noise_rows()}).items():
        shown = list(rows)
        chart = draw[name](shown) if shown else alt.Chart(alt.Data(values=[])).mark_point()
        charts[name] = chart.configure(**LOOK, padding=18, background="white")
    return charts


def _round_rows(results: Results) -> Iterator[Row]:
    """Mean accuracy at each round that all trials were tested at."""
    kinds: list[tuple[Profile, str]] = [("paper", model) for model in models("paper")]
    kinds += [("exact", "scattering-linear"), ("repair", "scattering-linear")]
    found = {cell.config: cell for profile, model in kinds for cell in known(results, "rounds", profile, model=model)}
    for config, cell in found.items():
        if not cell.trials:
            continue
        guarantee = "as printed: ε for each round" if config.unit == "paper" else "ε for the whole training"
        at = {"scheme": config.scheme, "epsilon": config.epsilon, "model": MODELS[config.model]}
        at |= {"guarantee": guarantee, "trials": cell.trials}
        curves = [{number: accuracy for number, accuracy, *_ in line["curve"]} for line in cell.lines]
        for number in sorted(set.intersection(*map(set, curves))):
            values = [curve[number] for curve in curves]
            yield at | {"round": number, "accuracy": statistics.mean(values), "low": min(values), "high": max(values)}


def _model_rows(results: Results) -> Iterator[Row]:
    for epsilon in EPSILONS:
        row = {"epsilon": epsilon, "what": "the paper: ResNet-18, ε for each round", "scheme": "paper"}
        yield row | {"accuracy": TABLES["table2"].printed[epsilon][0] / 100}
    for model in models("repair"):
        for scheme in ("repair", "central"):
            for cell in guaranteed(results, "rounds", scheme, model=model):
                if cell.accuracy is not None:
                    row = {"epsilon": cell.config.epsilon, "what": f"{MODELS[model]}, {title(scheme)}"}
                    yield row | {"scheme": scheme, "accuracy": cell.accuracy}


def _prior_rows(results: Results) -> Iterator[Row]:
    """From a start, beside published accuracies."""
    for cell in from_start(results):
        if cell.accuracy is not None:
            row = {"epsilon": cell.config.epsilon, "what": f"from noise, {title(cell.config.scheme)}"}
            yield row | {"accuracy": cell.accuracy}
    for name, known_at in ANCHORS.items():
        for epsilon, accuracy in known_at.items():
            yield {"epsilon": epsilon, "what": name, "accuracy": accuracy / 100}


def _prior(rows: Sequence[Row]) -> alt.Chart:
    """Accuracy against ε, a line with points for each."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    title = _heading("Without natural public images on CIFAR-10", "ours: 50 clients, C̄ = S̄ = 10; δ = 1e-5")
    return (
        alt.Chart(alt.Data(values=list(rows)), width=420, height=260, title=title)
        .mark_line(point=True)
        .encode(
            x=alt.X("epsilon:Q", title="ε of the whole training"),
            y=alt.Y("accuracy:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False)),
            color=alt.Color("what:N", sort=names, title=None, legend=alt.Legend(labelLimit=300)),
        )
    )


def _time_rows(results: Results) -> Iterator[Row]:
    for cell in known(results, "time", "repair"):
        links = "relayed" if cell.config.links == "relayed" else "direct"
        at = {"scheme": cell.config.scheme, "title": ALL[cell.config.scheme].title, "links": links}
        for line in cell.lines[:1]:
            for number, accuracy, seconds in line["curve"]:
                yield at | {"round": number, "accuracy": accuracy, "seconds": seconds}


def _noise_rows() -> Iterator[Row]:
    """σ_U and σ_K for an ε of one round, along each of C̄, S̄ and ε.

    Repair needs the rounds that follow: its noise is that of 150 rounds, which grows by √150, for one of them.
    """
    ways = {"colluders": range(0, 46, 5), "stragglers": range(0, 41, 5), "epsilon": (1, 2, 3, 4, 6, 8, 10)}
    for varies, values in ways.items():
        for value, scheme in itertools.product(values, ("paper", "exact", "repair")):
            rounds = 150 if scheme == "repair" else 1
            at = MIDDLE | {"epsilon": 3.0, "rounds": rounds, varies: value, "calibration": scheme}
            one = plan(**ONE_ROUND | at)
            for name, sigma in (("σ_U", one.sigma_individual), ("σ_K", one.sigma_pairwise)):
                row = {"varies": varies, "value": float(value), "scheme": scheme, "noise": name}
                yield row | {"sigma": sigma / math.sqrt(rounds)}


def _colour(rows: Sequence[Row], **legend: Any) -> alt.Color:  # noqa: ANN401  of altair's legend
    there = {row["scheme"] for row in rows}
    shown = [ALL[name] for name in (*reversed(BUILT_IN), *SCHEMES) if name in there]
    scale = alt.Scale(domain=[scheme.label for scheme in shown], range=[scheme.colour for scheme in shown])
    usual = {"title": None, "orient": "top", "columns": 6}
    usual |= {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}
    return alt.Color("label:N", scale=scale, legend=alt.Legend(**usual | legend))


def _data(rows: Sequence[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=[row | {"label": ALL[row["scheme"]].label} for row in rows]))


def _heading(text: str, *lines: str, size: int = 17) -> alt.Title:
    return alt.Title(text, subtitle=list(lines), anchor="start", fontSize=size, subtitleColor=_GREY, offset=12)


def _rounds(rows: Sequence[Row]) -> alt.VConcatChart:
    """A column for each ε, a row for each model and kind of guarantee; the band spans the trials."""
    x = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickCount=5))
    axis = alt.Axis(format="%", tickCount=6)
    sheets = []
    for guarantee, model in dict.fromkeys((row["guarantee"], row["model"]) for row in rows):
        here = [row for row in rows if (row["guarantee"], row["model"]) == (guarantee, model)]
        domain = [min(row["low"] for row in here) - 0.01, max(row["high"] for row in here) + 0.01]
        y = alt.Scale(domain=domain, nice=False)
        panels = []
        for epsilon in sorted({row["epsilon"] for row in here}):
            base = _data([row for row in here if row["epsilon"] == epsilon]).encode(x=x, color=_colour(rows))
            band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", scale=y, title=None), y2="high:Q")
            line = base.mark_line(strokeWidth=2.2).encode(y=alt.Y("accuracy:Q", scale=y, title=None, axis=axis))
            title = _heading(f"ε = {epsilon:g}", size=13)
            panels.append(alt.layer(band, line).properties(width=270, height=190, title=title))
        title = _heading(f"{model}, {guarantee}", trials(row["trials"] for row in here), size=14)
        sheets.append(alt.hconcat(*panels, spacing=28).properties(title=title))
    title = _heading("Accuracy against rounds on CIFAR-10", "50 clients, C̄ = S̄ = 10; bands span the trials of a cell")
    return alt.vconcat(*sheets, spacing=30).properties(title=title)


def _models(rows: Sequence[Row]) -> alt.LayerChart:
    """Accuracy against ε, a line for each model and scheme, its name at its end."""
    labels = [ALL[name].label for name in ("central", "repair", "paper")]
    dashes = alt.StrokeDash("label:N", scale=alt.Scale(domain=labels, range=[[5, 4], [1, 0], [1, 0]]), legend=None)
    axis, scale = alt.Axis(values=list(EPSILONS), grid=False, format="d"), alt.Scale(domain=[2.6, 9.2], nice=False)
    x = alt.X("epsilon:Q", title="ε", axis=axis, scale=scale)
    y = alt.Y("accuracy:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    base = _data(rows).encode(x=x, y=y, color=_colour(rows), detail="what:N")
    line = base.mark_line(strokeWidth=2.4).encode(strokeDash=dashes)
    dots = base.mark_point(filled=True, size=60, opacity=1)
    words = _data(_spread(rows, EPSILONS[-1])).mark_text(align="left", dx=12, fontSize=11, limit=330)
    words = words.encode(x=alt.datum(EPSILONS[-1]), y="place:Q", text="what:N", color=_colour(rows))
    title = _heading(
        "The paper's cell C̄ = S̄ = 10, beaten under a stronger guarantee",
        "test accuracy on CIFAR-10; the paper's ε is for one round, all others' for the whole training",
    )
    return alt.layer(line, dots, words).properties(width=430, height=330, title=title)


def _spread(rows: Sequence[Row], end: float) -> list[dict[str, Any]]:
    """Names beside the points at `end`, moved apart where they would overlap."""
    heights = [row["accuracy"] for row in rows]
    step = (max(heights) - min(heights)) / 20
    placed: list[dict[str, Any]] = []
    for row in sorted((row for row in rows if row["epsilon"] == end), key=lambda row: row["accuracy"]):
        lowest = placed[-1]["place"] + step if placed else row["accuracy"]
        placed.append(row | {"place": max(row["accuracy"], lowest)})
    return placed


def _time(rows: Sequence[Row]) -> alt.HConcatChart:
    """A panel for each kind of links; schemes whose clients do not talk are in both."""
    talking = {row["scheme"] for row in rows if row["links"] == "direct"}
    times = [row["seconds"] for row in rows if row["seconds"] > 0]
    scale = alt.Scale(type="log", domain=[min(times), max(times)], nice=False)
    powers = range(math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))) + 1)
    axis = alt.Axis(grid=False, format=",~g", values=[step * 10.0**power for power in powers for step in (1, 3)])
    x = alt.X("seconds:Q", title="seconds, modelled", scale=scale, axis=axis)
    axis = alt.Axis(format="%", tickCount=7)
    y = alt.Y("accuracy:Q", title=None, scale=alt.Scale(nice=False), axis=axis)
    colour = _colour(rows, columns=5, labelLimit=220)
    width = alt.condition("indexof(datum.label, 'LightDP') === 0", alt.value(3.4), alt.value(1.8))
    panels = []
    for links, words in (("relayed", "shares relayed by the server"), ("direct", "shares on links of their own")):
        here = [row for row in rows if row["links"] == links or row["scheme"] not in talking]
        line = _data(here).mark_line().encode(x=x, y=y, color=colour, order="round:Q", strokeWidth=width)
        panels.append(line.properties(width=420, height=300, title=_heading(words, size=13)))
    title = _heading(
        "Accuracy against time where each link fails with 5 %",
        "scattering + linear on CIFAR-10, 150 rounds, ε = 3 for all of them; 10 Mbit/s up, 50 down, 50 ms one way",
        "a flat line: no round came off",
    )
    return alt.hconcat(*panels, spacing=34).properties(title=title)


def _noise(rows: Sequence[Row]) -> alt.VConcatChart:
    """σ_U above, σ_K below, along C̄, S̄ and ε."""
    lines = []
    for name, words in (("σ_U", "σ_U, of a client's own noise"), ("σ_K", "σ_K, of noise that two clients share")):
        panels = []
        for varies, letter in _LETTERS.items():
            here = [row for row in rows if row["varies"] == varies and row["noise"] == name and row["sigma"] > 0]
            x = alt.X("value:Q", title=letter, axis=alt.Axis(grid=False))
            y = alt.Y("sigma:Q", title="in units of Δ" if varies == "colluders" else None)
            y = y.scale(type="log", nice=False).axis(tickCount=4, format="~g")
            line = _data(here).mark_line(strokeWidth=2.4, point={"size": 32})
            panels.append(line.encode(x=x, y=y, color=_colour(rows)).properties(width=250, height=180))
        lines.append(alt.hconcat(*panels, spacing=26).properties(title=_heading(words, size=14)))
    title = _heading(
        "How much noise",
        "N = 50, C̄ = S̄ = 10, ε = 3 for one round, δ = 1e-5, unless varied; repair as in a training of 150 rounds",
    )
    return alt.vconcat(*lines, spacing=26).properties(title=title)
