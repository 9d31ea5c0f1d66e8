"""`lightdp reproduce`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from lightdp import gaussian
from lightdp._validate import counted, integer, rounded_up
from lightdp.cli import table
from lightdp.cli.options import command_line
from lightdp.errors import ArgumentError
from lightdp.runlog import Line, Round
from lightdp.training.config import Config
from lightdp_lab.cli._progress import progress
from lightdp_lab.reproduce import TABLES, Profile, Target, cells, started
from lightdp_lab.tables import Cell, together

if TYPE_CHECKING:
    from lightdp_lab.results import Results  # with torch, which the help page does not need

_REPLACED = 20
_ASSUMED = "Every ε is for the sensitivity 2 η clip/|D_i| that this profile assumes; no theorem bounds it here."
HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def command(
    *,
    target: Annotated[Literal[Target, "sensitivity", "page"], typer.Argument(help="What to make.")],
    profile: Annotated[
        Literal[Profile, "prior"],
        typer.Option(
            help="As printed, with an ε for each round; or exact, repair or prior (from a start), one for the training."
        ),
    ] = "paper",
    model: Annotated[str | None, typer.Option(help="Another than the profile's usual one.")] = None,
    trials: Annotated[int | None, typer.Option(help="Runs of each cell, with seeds from 0.")] = None,
    epsilon: Annotated[str | None, typer.Option(help="Only these, with commas between them.")] = None,
    schemes: Annotated[str | None, typer.Option(help="Only these, with commas between them.")] = None,
    data_path: Annotated[Path | None, typer.Option(help="Folder or archive of CIFAR-10.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the lines that are kept.")] = Path("results"),
    jobs: Annotated[int, typer.Option(help="Runs at the same time; on a GPU they want its MPS daemon.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few clients, few rounds, embedded data.")] = False,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or show what there is.")] = True,
    docs: Annotated[Path, typer.Option(help="Of `page`: the folder to write to.")] = Path("docs"),
    html: Annotated[Path | None, typer.Option(help="Of `page`: write FILE.html, and nothing else.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run what is missing, and print."""
    from lightdp_lab.results import Results  # noqa: PLC0415  needs optional dependencies

    integer("jobs", jobs, 1)
    kept = Results(results)
    if target == "page":
        if not kept.runs():
            raise ArgumentError(f"results must be a folder with kept runs, got results={str(results)!r}")
        if html is None:
            _write(kept, docs)
        else:
            _write_html(kept, html)
        return
    if html is not None:
        raise ArgumentError(f"html is written by page alone, got html={str(html)!r} with {target}")
    if profile == "prior":
        _from_start(
            target, kept, trials=trials, epsilon=epsilon, schemes=schemes, data_path=data_path, run=run, as_json=as_json
        )
        return
    configs = cells(
        "rounds" if target == "sensitivity" else target, profile, model=model, trials=trials, quick=quick,
        epsilons=None if epsilon is None else _numbers(epsilon),
        schemes=None if schemes is None else tuple(name.strip() for name in schemes.split(",")),
    )  # fmt: skip
    if not configs:
        raise ArgumentError(f"schemes must name some of {target}'s, got schemes={schemes!r}")
    place = None if quick or data_path is None else str(data_path)
    if target == "sensitivity":
        _sensitivity(configs[0], kept, place, as_json=as_json)
        return
    before = _kept(configs, kept)
    if run:
        _play(configs, kept, jobs, place)
    _count(before, _kept(configs, kept), results)
    _tell(target, together(configs, kept), as_json=as_json)


def _kept(configs: Sequence[Config], results: Results) -> int:
    """How many of the runs there are."""
    return sum(results.find(config) is not None for config in configs)


def _count(before: int, after: int, folder: Path) -> None:
    """Say what was not run now, and how it would be."""
    again = "; another --results FOLDER runs all of them" if before else ""
    typer.echo(f"{counted(before, 'run')} read from {folder}, {after - before:,} run now{again}", err=True)


def _tell(target: Target, found: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([cell.to_dict() for cell in found], indent=1, allow_nan=False, ensure_ascii=False))
    else:
        _show(target, found)


def _from_start(
    target: str, kept: Results, *, trials: int | None, epsilon: str | None, schemes: str | None,
    data_path: Path | None, run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Private training from the start of the repository: what is missing is run, one after the other."""
    from lightdp_lab.prior import commands, finetune  # noqa: PLC0415  needs optional dependencies
    from lightdp_lab.results import Results  # noqa: PLC0415  likewise

    if target != "rounds":
        raise ArgumentError(f"target must be rounds for profile='prior', got target={target!r}")
    chosen = {} if epsilon is None else {"epsilons": _numbers(epsilon)}
    several = ("repair", "central") if schemes is None else tuple(name.strip() for name in schemes.split(","))
    seeds = tuple(range(integer("trials", 3 if trials is None else trials, 1)))
    configs = started(seeds=seeds, schemes=several, **chosen)
    before = _kept(configs, kept)
    if run:
        try:
            commands.train_all(configs, finetune.START, kept.folder, data_path)
        except KeyboardInterrupt:
            typer.echo("interrupted; the same command goes on from here", err=True)
            sys.exit(130)
        kept = Results(kept.folder)
    _count(before, _kept(configs, kept), kept.folder)
    _tell("rounds", together(configs, kept), as_json=as_json)


def _play(configs: Sequence[Config], kept: Results, jobs: int, data_path: str | None) -> None:
    from lightdp_lab import results  # noqa: PLC0415  needs optional dependencies

    missing = [dataclasses.replace(config, data_path=data_path) for config in configs if kept.find(config) is None]
    with progress() as bar:
        task = bar.add_task("runs", total=len(configs), completed=len(configs) - len(missing))

        def watch(config: Config, line: Line) -> None:
            if isinstance(line, Round):
                bar.update(task, description=f"{_name(config)}: round {line.round} of {config.rounds}")

        try:
            for config, line in results.play(missing, kept, jobs=jobs, watch=watch):
                bar.update(task, advance=1, description=f"{_name(config)}: {line['accuracy']:.1%}")
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; the same command goes on from here", err=True)
            sys.exit(130)


def _sensitivity(config: Config, kept: Results, data_path: str | None, *, as_json: bool) -> None:
    from lightdp_lab.sensitivity import moved, settings  # noqa: PLC0415  needs optional dependencies

    if config.unit != "paper":
        raise ArgumentError("sensitivity is one of profile='paper': the others clip, and Δ is the clip")
    line = kept.get(settings(config, _REPLACED))
    if line is None:
        line = moved(dataclasses.replace(config, data_path=data_path), _REPLACED)
        kept.add(config, line)
    if as_json:
        typer.echo(json.dumps(line))
        return
    ratio = line["ratio"]
    typer.echo(
        f"{config.model}: one of {line['records']} records replaced moves the update of a client by "
        f"{ratio['median']:.3g} Δ (median of {_REPLACED}) and up to {ratio['largest']:.3g} Δ, Δ = {line['assumed']:.3g}"
    )


def _name(config: Config) -> str:
    return f"{config.scheme} ε = {config.epsilon:g} C̄ = {config.colluders} S̄ = {config.stragglers} seed {config.seed}"


def _show(target: Target, cells: Sequence[Cell]) -> None:
    first = cells[0].config
    shown = table.new(f"{target}, {first.model} on {first.data}, test accuracy in %")
    varied = {"choices": ("clip", "partition"), "time": ("links",)}.get(target, ())
    printed = TABLES.get(target) if first.data == "cifar10" else None
    heads = ("scheme", "ε", "C̄", "S̄", *varied, *(["the paper"] if printed else []), "here (trials)")
    for name in (*heads, "true ε, a round", "true ε, all rounds", "μ, all rounds"):
        shown.add_column(name, justify="left" if name in ("scheme", *varied) else "right")
    for cell in cells:
        at = cell.config
        row = [at.scheme, f"{at.epsilon:g}", str(at.colluders), str(at.stragglers)]
        row += [f"{getattr(at, name)}" for name in varied]
        if printed:
            place = printed.values.index(getattr(at, printed.varies))
            row.append(f"{printed.printed[at.epsilon][place]}" if at.epsilon in printed.printed else "–")
        epsilons = (cell.largest("epsilon_round"), cell.largest("epsilon"))
        mu = None if epsilons[1] is None else gaussian.mu(epsilons[1], at.delta, up=True)
        privacy = ("–" if one is None else rounded_up(one, 3) for one in (*epsilons, mu))
        shown.add_row(*row, cell.text(count=True), *privacy)
    table.show(shown)
    if first.unit == "paper":
        typer.echo(_ASSUMED)


def _write(kept: Results, docs: Path) -> None:
    from lightdp.report import save  # noqa: PLC0415  needs optional dependencies
    from lightdp_lab.charts.results import results_charts  # noqa: PLC0415  likewise
    from lightdp_lab.page import page  # noqa: PLC0415  likewise

    path, pictures = docs / "evidence/results.md", docs / "img"
    if not path.is_file() or not pictures.is_dir():
        raise ArgumentError(f"docs must be a folder with evidence/results.md and img, got docs={str(docs)!r}")
    text = page(path.read_text(encoding="utf-8"), kept)
    with Console(stderr=True).status("drawing"):
        for name, chart in results_charts(kept).items():
            save(chart, pictures / f"results-{name}.svg")
    path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path} and its pictures")


def _write_html(kept: Results, html: Path) -> None:
    from lightdp.report import check_path, save_page  # noqa: PLC0415  needs optional dependencies
    from lightdp_lab.results_page import results_page  # noqa: PLC0415  likewise

    check_path(html, "html", [".html"])
    with Console(stderr=True).status(f"drawing {html}"):
        save_page(results_page(kept), html, command_line(), "html")
    typer.echo(f"wrote {html}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"epsilon must be numbers with commas between them, got epsilon={text!r}") from None
