"""The pictures of docs/evidence/results.md, from what `lightdp reproduce` found and from plans."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from lightdp.planning import plan
from lightdp.report import SOFT, TONES, Chart, Panel, Table, crossed, decades, heading, line_names, sheet, within
from lightdp.schemes import BUILT_IN
from lightdp_lab.differences import ONE_ROUND
from lightdp_lab.registry import ALL, SCHEMES
from lightdp_lab.reproduce import EPSILONS, MIDDLE, TABLES, Profile, models
from lightdp_lab.results import Results
from lightdp_lab.tables import ANCHORS, MODELS, from_start, guaranteed, known, trials

Row = dict[str, Any]

_LETTERS = {"colluders": "C̄, colluders", "stragglers": "S̄, stragglers", "epsilon": "ε of one round"}
_ROUNDS, _LINES, _LEVELS = 190, 300, 180  # pixels of height
_TITLES = {
    "rounds": "Accuracy against rounds on CIFAR-10",
    "models": "The paper's cell C̄ = S̄ = 10, beaten under a stronger guarantee",
    "prior": "Without natural public images on CIFAR-10",
    "time": "Accuracy against time where each link fails with 5 %",
    "noise": "How much noise",
}
_NOTES = {
    "rounds": ["50 clients, C̄ = S̄ = 10; bands span the trials of a cell"],
    "models": ["test accuracy on CIFAR-10; the paper's ε is for one round, all others' for the whole training"],
    "prior": ["ours: 50 clients, C̄ = S̄ = 10; δ = 1e-5"],
    "time": [
        "scattering + linear on CIFAR-10, 150 rounds, ε = 3 for all of them; 10 Mbit/s up, 50 down, 50 ms one way",
        "a flat line: no round came off",
    ],
    "noise": [
        "N = 50, C̄ = S̄ = 10, ε = 3 for one round, δ = 1e-5, unless varied; repair as in a training of 150 rounds"
    ],
}


def results_charts(results: Results) -> dict[str, Chart]:
    """The pictures of the page by name: "rounds", "models", "prior", "time" and "noise".

    Args:
        results: the kept runs; a picture without any is empty.
    """
    return {name: _sheet(name, panels) for name, (_, _, panels) in results_panels(results).items()}


def results_panels(results: Results) -> dict[str, tuple[str, list[str], list[Panel]]]:
    """The title, the notes and the panels of each picture.

    Args:
        results: the kept runs; a picture without any has no panels.
    """
    found = {"rounds": _round_rows(results), "models": _model_rows(results), "time": _time_rows(results)}
    found |= {"prior": _prior_rows(results)}
    draw = {"rounds": _rounds, "models": _models, "prior": _prior, "time": _time, "noise": _noise}
    shown = {name: list(rows) for name, rows in (found | {"noise": _noise_rows()}).items()}
    return {name: (_TITLES[name], _NOTES[name], draw[name](rows) if rows else []) for name, rows in shown.items()}


def _sheet(name: str, panels: Sequence[Panel]) -> Chart:
    """The panels in rows of two or three."""
    if not panels:
        return sheet(alt.Chart(alt.Data(values=[])).mark_point())
    columns, width = {"rounds": (3, 215), "models": (1, 430), "prior": (1, 430), "time": (2, 360), "noise": (3, 215)}[
        name
    ]
    drawn = [panel.chart.properties(width=width, title=heading(panel.title, panel.note, size=13)) for panel in panels]
    rows = [alt.hconcat(*drawn[at : at + columns], spacing=24) for at in range(0, len(drawn), columns)]
    return sheet(alt.vconcat(*rows, spacing=26).properties(title=heading(_TITLES[name], *_NOTES[name])))


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
        row = {"epsilon": epsilon, "what": "the paper, ResNet-18", "scheme": "paper"}
        yield row | {"accuracy": TABLES["table2"].printed[epsilon][0] / 100}
    for model in models("repair"):
        for scheme in ("repair", "central"):
            for cell in guaranteed(results, "rounds", scheme, model=model):
                if cell.accuracy is not None:
                    row = {
                        "epsilon": cell.config.epsilon,
                        "what": f"{MODELS[model].removeprefix('scattering + ')}, {ALL[scheme].label}",
                    }
                    yield row | {"scheme": scheme, "accuracy": cell.accuracy}


def _prior_rows(results: Results) -> Iterator[Row]:
    """From a start, beside published accuracies."""
    for cell in from_start(results):
        if cell.accuracy is not None:
            scheme = ALL[cell.config.scheme]
            row = {"epsilon": cell.config.epsilon, "what": scheme.label, "colour": scheme.colour}
            yield row | {"accuracy": cell.accuracy}
    for (name, known_at), colour in zip(ANCHORS.items(), (SOFT, TONES["sand"], TONES["teal"]), strict=True):
        for epsilon, accuracy in known_at.items():
            yield {"epsilon": epsilon, "what": name, "colour": colour, "accuracy": accuracy / 100}


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


def _colour(field: str = "label") -> alt.Color:
    """Every scheme's own colour, in all charts."""
    shown = [ALL[name] for name in (*BUILT_IN, *SCHEMES)]
    scale = alt.Scale(domain=[scheme.label for scheme in shown], range=[scheme.colour for scheme in shown])
    return alt.Color(f"{field}:N", scale=scale, legend=None)


def _data(rows: Sequence[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=[row | {"label": ALL[row["scheme"]].label} for row in rows]))


def _ends(rows: Sequence[Row], value: str, name: str = "label") -> list[Row]:
    """The last value of each line, for its name."""
    last = {row.get(name, ALL[row["scheme"]].label): row for row in rows}
    return [
        {"name": key, "value": row[value], "colour": ALL[row["scheme"]].colour,
         "bold": row["scheme"] in ("repair", "exact") and name == "label"}
        for key, row in last.items()
    ]  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _rounds(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each model, kind of guarantee and ε; the band spans the trials."""
    x = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickCount=4))
    panels = []
    for guarantee, model in dict.fromkeys((row["guarantee"], row["model"]) for row in rows):
        same = [row for row in rows if (row["guarantee"], row["model"]) == (guarantee, model)]
        span = min(row["low"] for row in same) - 0.01, max(row["high"] for row in same) + 0.01
        for epsilon in sorted({row["epsilon"] for row in same}):
            here = [row for row in same if row["epsilon"] == epsilon]
            kept = ("scheme", "round", "accuracy", "low", "high")
            base = _data([{name: row[name] for name in kept} for row in here]).encode(x=x, color=_colour())
            band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", scale=within(*span), title=None), y2="high:Q")
            y = alt.Y("accuracy:Q", scale=within(*span), title=None, axis=alt.Axis(format="%"))
            chart = alt.layer(band, base.mark_line(strokeWidth=2.2).encode(y=y), line_names(
                _ends(here, "accuracy"), span, _ROUNDS))  # fmt: skip
            named = [row | {"label": ALL[row["scheme"]].label} for row in here]
            table = crossed(named, ("round", "round"), "label", "accuracy", _percent)
            title, note = f"{model}, ε = {epsilon:g}", f"{guarantee}, {trials(row['trials'] for row in here)}"
            panels.append(Panel(title, note, chart.properties(height=_ROUNDS), "small", table))
    return panels


def _models(rows: Sequence[Row]) -> list[Panel]:
    """Accuracy against ε, a line for each model and scheme, its name at its end."""
    labels = [ALL[name].label for name in ("central", "repair", "paper")]
    dashes = alt.StrokeDash("label:N", scale=alt.Scale(domain=labels, range=[[5, 4], [1, 0], [1, 0]]), legend=None)
    x = alt.X("epsilon:Q", title="ε", axis=alt.Axis(values=list(EPSILONS), grid=False, format="d"))
    x = x.scale(within(2.6, 9.2))
    span = min(row["accuracy"] for row in rows) - 0.02, max(row["accuracy"] for row in rows) + 0.02
    y = alt.Y("accuracy:Q", title=None, axis=alt.Axis(format="%"), scale=within(*span))
    base = _data(rows).encode(x=x, y=y, color=_colour(), detail="what:N")
    line = base.mark_line(strokeWidth=2.4).encode(strokeDash=dashes)
    tips = ["what:N", "epsilon:Q", alt.Tooltip("accuracy:Q", format=".1%")]
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(tooltip=tips)
    last = [row for row in rows if row["epsilon"] == max(EPSILONS)]
    names = line_names(_ends(last, "accuracy", "what"), span, _LINES)
    table = crossed(rows, ("epsilon", "ε"), "what", "accuracy", _percent)
    chart = alt.layer(line, dots, names).properties(height=_LINES)
    return [
        Panel(
            "Test accuracy against ε",
            "linear and CNN: on scattering features; dashed: a trusted server",
            chart,
            "wide",
            table,
        )
    ]


def _prior(rows: Sequence[Row]) -> list[Panel]:
    """Accuracy against ε from a start from noise, with published accuracies of a trusted server."""
    span = min(row["accuracy"] for row in rows) - 0.02, max(row["accuracy"] for row in rows) + 0.02
    colours = {row["what"]: row["colour"] for row in rows}
    colour = alt.Color("what:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None)
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X("epsilon:Q", title="ε of the whole training", scale=within(0.8, 9.2), axis=alt.Axis(grid=False)),
        y=alt.Y("accuracy:Q", title=None, axis=alt.Axis(format="%"), scale=within(*span)), color=colour,
    )  # fmt: skip
    ends = {row["what"]: row["accuracy"] for row in rows}
    names = [{"name": name, "value": value, "colour": colours[name], "bold": name == ALL["repair"].label}
             for name, value in ends.items()]  # fmt: skip
    dots = base.mark_point(filled=True, size=60, opacity=1)
    chart = alt.layer(base.mark_line(strokeWidth=2.4), dots, line_names(names, span, _LINES)).properties(height=_LINES)
    table = crossed(rows, ("epsilon", "ε"), "what", "accuracy", _percent)
    note = "repair and central: WRN-16-4 from a start from noise; others: published, trusted server"
    return [Panel("Test accuracy against ε", note, chart, "wide", table)]


def _time(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each kind of links; schemes whose clients do not talk are in both."""
    talking = {row["scheme"] for row in rows if row["links"] == "direct"}
    times = [row["seconds"] for row in rows if row["seconds"] > 0]
    x = alt.X("seconds:Q", title="seconds, modelled", scale=within(min(times), max(times), type="log"))
    x = x.axis(grid=False, format=",~g", values=decades(min(times), max(times)))
    span = 0.0, max(row["accuracy"] for row in rows) + 0.02
    y = alt.Y("accuracy:Q", title=None, scale=within(*span), axis=alt.Axis(format="%"))
    width = alt.condition("indexof(datum.label, 'LightDP') === 0", alt.value(3.2), alt.value(1.8))
    panels = []
    for links, words in (("relayed", "Shares relayed by the server"), ("direct", "Shares on links of their own")):
        here = [row for row in rows if (row["links"] == links or row["scheme"] not in talking) and row["seconds"] > 0]
        line = _data(here).mark_line().encode(x=x, y=y, color=_colour(), order="round:Q", strokeWidth=width)
        cells = [[row["title"], str(row["round"]), f"{row['seconds']:,.4g}", _percent(row["accuracy"])] for row in here]
        table = Table(["scheme", "round", "seconds", "accuracy"], cells)
        chart = alt.layer(line, line_names(_ends(here, "accuracy"), span, _LINES)).properties(height=_LINES)
        panels.append(Panel(words, "each scheme's name at its last accuracy", chart, "half", table))
    return panels


def _noise(rows: Sequence[Row]) -> list[Panel]:
    """σ_U, then σ_K, along C̄, S̄ and ε."""
    panels = []
    for name, words in (("σ_U", "of a client's own noise"), ("σ_K", "of noise that two clients share")):
        for varies, letter in _LETTERS.items():
            here = [row for row in rows if row["varies"] == varies and row["noise"] == name and row["sigma"] > 0]
            span = min(row["sigma"] for row in here) / 1.1, max(row["sigma"] for row in here) * 1.1
            x = alt.X("value:Q", title=letter, axis=alt.Axis(grid=False))
            y = alt.Y("sigma:Q", title=None, scale=within(*span, type="log"))
            y = y.axis(values=decades(*span), format="~g")
            line = _data(here).mark_line(strokeWidth=2.4, point={"size": 32}).encode(x=x, y=y, color=_colour())
            chart = alt.layer(line, line_names(_ends(here, "sigma"), span, _LEVELS, log=True))
            named = [row | {"label": ALL[row["scheme"]].label} for row in here]
            table = crossed(named, ("value", letter), "label", "sigma", "{:.4g}".format)
            title = f"{name} against {letter.split(',')[0]}"
            panels.append(Panel(title, f"{words}, in units of Δ", chart.properties(height=_LEVELS), "small", table))
    return panels
