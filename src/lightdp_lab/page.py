"""docs/results.md from results: every number between its marks comes from runs that were kept or from plans."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from lightdp._validate import rounded_up
from lightdp_lab import reproduce
from lightdp_lab.differences import composed, differences, printed_plan
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import EPSILONS, TABLES
from lightdp_lab.tables import MODELS, Cell, filled, known, markdown, title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lightdp_lab.reproduce import Profile, Target
    from lightdp_lab.results import Results


_BOTH: tuple[Target, ...] = ("table2", "table3")


def page(text: str, results: Results) -> str:
    """The page `text`, each block between its marks made anew."""
    blocks = {
        "made": _made(results),
        **{f"{name}-{kind}": _table(name, kind, results) for name in _BOTH for kind in ("paper", "training")},
        "schemes": _schemes(results),
        "choices": _choices(results),
        "models": _models(results),
        "links": _links(results),
        "time": _time(results),
        "speed": _speed(results),
        "differences": differences(results),
    }
    return filled(text, blocks)


def _made(results: Results) -> str:
    """How many runs there are, of what, and where they ran."""
    kinds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for line in results.runs():
        if line["config"]["data"] == "cifar10":
            kinds[line["config"]["unit"], line["config"]["model"], line["device"]].append(line["seconds"])
    rows = []
    for (unit, model, device), seconds in sorted(kinds.items()):
        kind = "as printed" if unit == "paper" else "whole training"
        rows.append([kind, MODELS[model], device, f"{len(seconds):,}", f"{statistics.median(seconds):.3g} s"])
    return markdown(["guarantee", "model", "device", "runs", "median time of a run, others beside it"], rows)


def _table(name: Target, profile: str, results: Results) -> str:
    """A table of the paper: its numbers, ours beside them, and what ε is true."""
    table = TABLES[name]
    letter = {"colluders": "C̄", "stragglers": "S̄"}[table.varies]
    head = ["ε", "", *(f"{letter} = {value}" for value in table.values)]
    rows = []
    for epsilon in EPSILONS:
        printed = [f"{value}" for value in table.printed[epsilon]]
        rows.append([f"{epsilon:g}", "the paper, per-round ε", *printed])
        for label, found in _rows_of(name, profile, epsilon, results):
            placed = {getattr(cell.config, table.varies): cell for cell in found}
            if profile == "training" and not any(cell.trials for cell in found):
                continue
            rows.append(["", label, *(_text(placed.get(value)) for value in table.values)])
        if profile == "paper":
            plans = [printed_plan(epsilon, **table.fixed | {table.varies: value}) for value in table.values]
            rows.append(["", "true ε of one round", *(rounded_up(one.epsilon(), 3) for one in plans)])
            rows.append(["", "true ε of 150 rounds", *(rounded_up(composed(one, 150), 3) for one in plans)])
    return markdown(head, rows)


def _text(cell: Cell | None) -> str:
    return "impossible" if cell is None else cell.text()


def _rows_of(name: Target, profile: str, epsilon: float, results: Results) -> Iterator[tuple[str, list[Cell]]]:
    if profile == "paper":
        for model in reproduce.models("paper"):
            found = known(results, name, "paper", model=model, epsilons=(epsilon,))
            yield f"{MODELS[model]}, {_trials(found)}", found
        return
    for scheme in ("exact", "repair", "smpc"):
        owner: Profile = "exact" if scheme == "exact" else "repair"
        found = known(results, name, owner, epsilons=(epsilon,), schemes=(scheme,))
        yield f"{title(scheme)}, {_trials(found)}", found


def _trials(found: Iterable[Cell]) -> str:
    counts = sorted({cell.trials for cell in found if cell.trials})
    if not counts:
        return "not run"
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{many} trial{'s' if counts[-1] > 1 else ''}"


def _schemes(results: Results) -> str:
    """As printed, in the middle of the grid: what each scheme reaches, and how much noise it had."""
    names = ("paper", "smpc", "local-paper")
    rows = []
    for model in reproduce.models("paper"):
        found = {
            (cell.config.epsilon, cell.config.scheme): cell for cell in known(results, "rounds", "paper", model=model)
        }
        rows += [
            [MODELS[model], f"{epsilon:g}", *(_noisy(found[epsilon, name]) for name in names)] for epsilon in EPSILONS
        ]
    return markdown(["model", "ε", *(title(name) for name in names)], rows)


def _noisy(cell: Cell) -> str:
    noise = f" ({statistics.mean(line['noise'] for line in cell.lines):.1e})" if cell.trials else ""
    return f"{cell.text()}{noise}"


def _choices(results: Results) -> str:
    """How much hangs on what the paper leaves open."""
    rows = [
        [MODELS[model], f"{cell.config.clip:g}", cell.config.partition, _smallest(cell), cell.text(count=True)]
        for model in reproduce.models("paper")
        for cell in known(results, "choices", "paper", model=model)
        if cell.trials
    ]
    return markdown(["model", "clip", "partition", "smallest client", "accuracy (trials)"], rows)


def _smallest(cell: Cell) -> str:
    sizes = [line["smallest"] for line in cell.lines]
    return f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"


def _models(results: Results) -> str:
    """The middle of the grid by model and scheme, and how far from a trusted server."""
    rows = []
    table = TABLES["table2"]
    printed = (f"{table.printed[epsilon][0]}" for epsilon in EPSILONS)
    rows.append(["ResNet-18, as the paper prints it", "LightDP-FL, ε for each round", *printed, ""])
    for model in reproduce.models("repair"):
        central: dict[float, float] = {}
        for scheme in ("central", "repair", "smpc", "exact", "local"):
            owner: Profile = "exact" if scheme == "exact" else "repair"
            cells = known(results, "rounds", owner, model=model, schemes=(scheme,))
            found = {cell.config.epsilon: cell for cell in cells if cell.trials}
            if not found:
                continue
            here = {epsilon: cell.accuracy for epsilon, cell in found.items() if cell.accuracy is not None}
            central = here if scheme == "central" else central
            behind = [
                100 * (central[epsilon] - here[epsilon]) for epsilon in EPSILONS if epsilon in central.keys() & here
            ]
            far = "" if scheme == "central" or not behind else f"{max(behind):.1f}"
            shown = [found[epsilon].text() if epsilon in found else "–" for epsilon in EPSILONS]
            rows.append([f"{MODELS[model]}, {_trials(found.values())}", title(scheme), *shown, far])
    return markdown(["model", "scheme", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "points behind central"], rows)


def _links(results: Results) -> str:
    """Repair against secure aggregation where links fail, cell by cell."""
    found = {
        (c.config.epsilon, c.config.colluders, c.config.stragglers, c.config.scheme): c
        for c in known(results, "links", "repair")
    }
    rows = []
    for epsilon, colluders, stragglers in dict.fromkeys(key[:3] for key in found):
        repair, smpc = (found.get((epsilon, colluders, stragglers, scheme)) for scheme in ("repair", "smpc"))
        if repair is None or repair.accuracy is None:
            continue
        gain = "" if smpc is None or smpc.accuracy is None else f"{100 * (repair.accuracy - smpc.accuracy):+.1f}"
        rows.append(
            [f"{epsilon:g}", str(colluders), str(stragglers), repair.text(), _text(smpc), gain, str(repair.trials)]
        )
    return markdown(["ε", "C̄", "S̄", "LightDP, repair", "SMPC + DP", "points", "trials"], rows)


def _time(results: Results) -> str:
    """What each scheme had reached after how long."""
    rows = []
    for cell in known(results, "time", "repair"):
        if not cell.trials:
            continue
        line = cell.lines[0]
        links = "" if cell.config.links == "relayed" else ", direct links"
        seconds = line["curve"][-1][2] if line["curve"] else 0.0
        scheme, failed = f"{ALL[cell.config.scheme].title}{links}", f"{line['failed']} of {line['rounds']}"
        shown = f"{'' if line['time_measured'] else '~'}{seconds:,.3g}"
        rows.append([scheme, str(line["trips"]), failed, cell.text(), shown])
    return markdown(["scheme", "trips a round", "failed rounds", "accuracy", "seconds, modelled"], rows)


def _speed(results: Results) -> str:
    """How long a whole run of ResNet-18 takes that has the device for itself, by the stragglers that spare it work."""
    runs = [line for line in results.runs() if line["config"]["model"] == "resnet18" and line["rounds"] == 150]
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in runs:
        if line.get("beside", 0) == 0:
            found[line["device"], line["config"]["stragglers"]].append(line["seconds"])
    rows = [
        [device, str(bound), str(len(times)), *(f"{f(times):.0f}" for f in (min, statistics.median, max))]
        for (device, bound), times in sorted(found.items())
    ]
    return markdown(["device", "S̄", "runs", "fastest, s", "median, s", "slowest, s"], rows)
