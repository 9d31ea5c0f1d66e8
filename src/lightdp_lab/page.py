"""docs/evidence/results.md from results: each number between its marks comes from runs that were kept or from plans."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from lightdp._validate import rounded_up
from lightdp_lab import reproduce
from lightdp_lab.differences import composed, differences, printed_plan
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import EPSILONS, TABLES, Target
from lightdp_lab.results import Results
from lightdp_lab.tables import (
    ANCHORS,
    MODELS,
    PRIOR_EPSILONS,
    Cell,
    Gain,
    Grid,
    filled,
    from_start,
    gain,
    guaranteed,
    known,
    span,
    title,
    trials,
)


def page(text: str, results: Results) -> str:
    """The page `text`, each block between its marks made anew."""
    return filled(text, {name: str(block) for name, block in blocks_of(results).items()})


def blocks_of(results: Results) -> dict[str, Grid | str]:
    """Every block by the name in its mark."""
    blocks: dict[str, Grid | str] = {name: made(results) for name, made in _BLOCKS.items()}
    for name, kind in itertools.product(TABLES, ("paper", "training")):
        blocks[f"{name}-{kind}"] = _table(name, kind, results)
    return blocks


def _made(results: Results) -> Grid:
    """How many runs there are, of what, and where they ran."""
    kinds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for line in results.runs():
        at = line["config"]
        if at["data"] == "cifar10":
            kinds[at["unit"], at["model"], line["device"]].append(line["seconds"])
    rows = []
    for (unit, model, device), seconds in sorted(kinds.items()):
        kind = "as printed" if unit == "paper" else "whole training"
        rows.append([kind, MODELS[model], device, f"{len(seconds):,}", f"{statistics.median(seconds):.3g} s"])
    return Grid(["guarantee", "model", "device", "runs", "median time of a run, others beside it"], rows)


def _table(name: Target, kind: str, results: Results) -> Grid:
    """A table of the paper: its numbers, ours beside them, and what ε is true."""
    table = TABLES[name]
    letter = {"colluders": "C̄", "stragglers": "S̄"}[table.varies]
    if kind == "paper":
        found = {MODELS[model]: known(results, name, "paper", model=model) for model in reproduce.models("paper")}
    else:
        found = {title(scheme): guaranteed(results, name, scheme) for scheme in ("exact", "repair", "smpc")}
    rows = []
    for epsilon in EPSILONS:
        rows.append([f"{epsilon:g}", "the paper, per-round ε", *map(str, table.printed[epsilon])])
        for label, cells in found.items():
            here = {getattr(cell.config, table.varies): cell for cell in cells if cell.config.epsilon == epsilon}
            if kind == "paper" or any(cell.trials for cell in here.values()):
                shown = [_text(here.get(value)) for value in table.values]
                rows.append(["", f"{label}, {trials(cell.trials for cell in here.values())}", *shown])
        if kind == "training":
            rows.append(["", "repair - SMPC + DP ± standard error", *_gains(results, name, epsilon)])
        if kind == "paper":
            plans = [printed_plan(epsilon, **table.fixed | {table.varies: value}) for value in table.values]
            once = [(one.epsilon(), one.mu) for one in plans]
            whole = [(composed(one, 150), one.mu * math.sqrt(150)) for one in plans]
            for what, pairs in (("one round", once), ("150 rounds", whole)):
                texts = (f"{rounded_up(true, 3)} ({rounded_up(mu, 3)})" for true, mu in pairs)
                rows.append(["", f"true ε (μ) of {what}", *texts])
    return Grid(["ε", "", *(f"{letter} = {value}" for value in table.values)], rows)


def _gains(results: Results, name: Target, epsilon: float) -> list[str]:
    """Repair beside secure aggregation in a row of a table."""
    table, found = TABLES[name], _both(results, name)
    places = (table.fixed | {table.varies: value} for value in table.values)
    both = (found.get((epsilon, place["colluders"], place["stragglers"]), {}) for place in places)
    return [str(gain(pair.get("repair"), pair.get("smpc")) or "") for pair in both]


def _both(results: Results, target: Target) -> dict[tuple[float, int, int], dict[str, Cell]]:
    """Repair and secure aggregation by ε, colluders and stragglers."""
    found: dict[tuple[float, int, int], dict[str, Cell]] = defaultdict(dict)
    for cell in known(results, target, "repair"):
        found[cell.config.epsilon, cell.config.colluders, cell.config.stragglers][cell.config.scheme] = cell
    return found


def _summary(results: Results, *targets: Target) -> str:
    """In how many cells repair is above secure aggregation, to two digits, level with it or below."""
    found = {
        place: points
        for target in targets
        for place, pair in _both(results, target).items()
        if (points := gain(pair.get("repair"), pair.get("smpc"))) is not None
    }
    if not found:
        return "Not run."
    above = [place for place, points in found.items() if round(points.points, 2) > 0]
    below = [place for place, points in found.items() if round(points.points, 2) < 0]
    parts = [f"above SMPC + DP in {len(above)} of {len(found)} cells"]
    if level := len(found) - len(above) - len(below):
        parts.append(f"level with it in {level}")
    if below:
        parts.append(f"below it in {len(below)} ({'; '.join(_place(place, found[place]) for place in below)})")
    best = max(found, key=lambda place: found[place].points)
    return f"Repair is {', '.join(parts)}. The largest difference: {_place(best, found[best])}."


def _place(place: tuple[float, int, int], points: Gain) -> str:
    epsilon, colluders, stragglers = place
    return f"ε = {epsilon:g}, C̄ = {colluders}, S̄ = {stragglers}: {points}"


def _text(cell: Cell | None) -> str:
    return "impossible" if cell is None else cell.text()


def _schemes(results: Results) -> Grid:
    """As printed, in the middle of the grid: what each scheme reaches, and how much noise it had."""
    names, rows = ("paper", "smpc", "local-paper"), list[list[str]]()
    for model in reproduce.models("paper"):
        cells = {(c.config.epsilon, c.config.scheme): c for c in known(results, "rounds", "paper", model=model)}
        rows += [[MODELS[model], f"{at:g}", *(_noisy(cells[at, name]) for name in names)] for at in EPSILONS]
    return Grid(["model", "ε", *map(title, names)], rows)


def _noisy(cell: Cell) -> str:
    noise = f" ({statistics.mean(line['noise'] for line in cell.lines):.1e})" if cell.trials else ""
    return f"{cell.text()}{noise}"


def _choices(results: Results) -> Grid:
    """How much hangs on what the paper leaves open."""
    rows = []
    for model in reproduce.models("paper"):
        for cell in known(results, "choices", "paper", model=model):
            if cell.trials:
                at, smallest = cell.config, span(line["smallest"] for line in cell.lines)
                rows.append([MODELS[model], f"{at.clip:g}", at.partition, smallest, cell.text(count=True)])
    return Grid(["model", "clip", "partition", "smallest client", "accuracy (trials)"], rows)


def _models(results: Results) -> Grid:
    """The middle of the grid by model and scheme, and how far from a trusted server."""
    printed = [f"{TABLES['table2'].printed[epsilon][0]}" for epsilon in EPSILONS]
    rows = [["ResNet-18, as the paper prints it", "LightDP-FL, ε for each round", *printed, ""]]
    for model in reproduce.models("repair"):
        central: dict[float, float] = {}
        for scheme in ("central", "repair", "smpc", "exact", "local"):
            cells = [cell for cell in guaranteed(results, "rounds", scheme, model=model) if cell.trials]
            if not cells:
                continue
            here = {cell.config.epsilon: cell.accuracy for cell in cells if cell.accuracy is not None}
            behind = [100 * (central[epsilon] - here[epsilon]) for epsilon in central.keys() & here]
            central = here if scheme == "central" else central
            texts = {cell.config.epsilon: cell.text() for cell in cells}
            shown = [texts.get(epsilon, "–") for epsilon in EPSILONS]
            far = f"{max(behind):.1f}" if behind else ""
            rows.append([f"{MODELS[model]}, {trials(cell.trials for cell in cells)}", title(scheme), *shown, far])
    return Grid(["model", "scheme", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "points behind central"], rows)


def _prior(results: Results) -> Grid:
    """Private training from a start from noise, beside what others publish for a trusted server."""
    cells = from_start(results)
    columns = sorted({*PRIOR_EPSILONS, *(epsilon for known_at in ANCHORS.values() for epsilon in known_at)})
    rows = []
    for scheme in ("central", "repair"):
        texts = {cell.config.epsilon: cell.text(count=True) for cell in cells if cell.config.scheme == scheme}
        rows.append([f"WRN-16-4, {title(scheme)}", *(texts.get(epsilon, "–") for epsilon in columns)])
    rows.append(["repair - central, same seeds", *_behind(cells, columns)])
    for name, known_at in ANCHORS.items():
        rows.append([name, *(f"{known_at[epsilon]:g}" if epsilon in known_at else "–" for epsilon in columns)])
    return Grid(["accuracy in % (trials)", *(f"ε = {epsilon:g}" for epsilon in columns)], rows)


def _behind(cells: list[Cell], epsilons: Sequence[float]) -> list[str]:
    """Repair beside a trusted server, in points and with how many trials of both, by ε."""
    found = {(cell.config.epsilon, cell.config.scheme): cell for cell in cells}
    texts = []
    for epsilon in epsilons:
        both = [found.get((epsilon, scheme)) for scheme in ("repair", "central")]
        seeds = [{line["config"]["seed"] for line in cell.lines} for cell in both if cell is not None]
        points = gain(*both)
        texts.append("–" if points is None else f"{points} ({len(set.intersection(*seeds))})")
    return texts


def _beside(results: Results) -> Grid:
    """A linear model on scattering features with and without those of a start."""
    asked = {"model": "scattering-linear", "epsilons": PRIOR_EPSILONS, "schemes": ("central", "repair")}
    kinds = {"with the start's": Results(results.folder / "extras"), "alone": results}
    rows = []
    for words, kept in kinds.items():
        cells = known(kept, "rounds", "repair", **asked)
        for scheme in ("central", "repair"):
            texts = {cell.config.epsilon: cell.text(count=True) for cell in cells if cell.config.scheme == scheme}
            rows.append([f"scattering {words}, {title(scheme)}", *(texts.get(at, "–") for at in PRIOR_EPSILONS)])
        rows.append(["repair - central, same seeds", *_behind(cells, PRIOR_EPSILONS)])
    return Grid(["accuracy in % (trials)", *(f"ε = {epsilon:g}" for epsilon in PRIOR_EPSILONS)], rows)


def _links(results: Results) -> Grid:
    """Repair against secure aggregation where links fail, cell by cell."""
    rows = []
    for place, both in _both(results, "links").items():
        repair, smpc = both["repair"], both.get("smpc")
        if repair.accuracy is not None:
            points = str(gain(repair, smpc) or "")
            rows.append([*(f"{value:g}" for value in place), repair.text(), _text(smpc), points, str(repair.trials)])
    return Grid(["ε", "C̄", "S̄", "LightDP, repair", "SMPC + DP", "points ± standard error", "trials"], rows)


def _time(results: Results) -> Grid:
    """What each scheme had reached after how long."""
    rows = []
    for cell in known(results, "time", "repair"):
        for line in cell.lines[:1]:
            links = "" if cell.config.links == "relayed" else ", direct links"
            seconds = line["curve"][-1][2] if line["curve"] else 0.0
            scheme, failed = f"{ALL[cell.config.scheme].title}{links}", f"{line['failed']} of {line['rounds']}"
            shown = f"{'' if line['time_measured'] else '~'}{seconds:,.3g}"
            rows.append([scheme, str(line["trips"]), failed, cell.text(), shown])
    return Grid(["scheme", "trips a round", "failed rounds", "accuracy", "seconds, modelled"], rows)


def _speed(results: Results) -> Grid:
    """How long a whole run of ResNet-18 takes that has the device for itself, by the stragglers that spare it work."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in results.runs():
        at = line["config"]
        if at["model"] == "resnet18" and line["rounds"] == 150 and line.get("beside", 0) == 0:
            found[line["device"], at["stragglers"]].append(line["seconds"])
    rows = [
        [device, str(bound), str(len(times)), *(f"{f(times):.0f}" for f in (min, statistics.median, max))]
        for (device, bound), times in sorted(found.items())
    ]
    return Grid(["device", "S̄", "runs", "fastest, s", "median, s", "slowest, s"], rows)


# What makes each block of the page, beside the paper's tables.
_BLOCKS: dict[str, Callable[[Results], Grid | str]] = {
    "made": _made, "schemes": _schemes, "choices": _choices, "models": _models, "prior": _prior,
    "beside": _beside, "links": _links, "time": _time, "speed": _speed, "differences": differences,
    "tables-gain": lambda results: _summary(results, *TABLES),
    "links-gain": lambda results: _summary(results, "links"),
}  # fmt: skip
