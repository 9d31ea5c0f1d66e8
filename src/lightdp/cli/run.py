"""`lightdp run`: a simulated training, from settings to log, page and statement.

The flags are the fields of `lightdp.training.config.Config`; those given win over a TOML file, and that over defaults.
Three files lie beside each other:

- `run.jsonl`, the log (docs/reference/run-log.md), a line for each round as soon as it is over;
- `run.checkpoint`, from which `--resume` goes on, with the same result as without an interruption;
- `run.html`, the page of `lightdp report`, once the run has ended.

`--save-model` keeps the model in one more. None of them replaces a file, unless `--overwrite` says so; with `--resume`,
the page replaces an older one of lightdp. A run that is killed at any moment goes on by `--resume`; only runs with real
keys and noise (`--fidelity protocol`) cannot, since their noise must never be made twice. `--live` shows the log in the
browser while it grows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from lightdp._settings import read_toml
from lightdp._validate import counted, rounded_up
from lightdp.cli import _output, table
from lightdp.cli.options import command_line, with_settings
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.planning import page
from lightdp.runlog import Line, Round, RunLog, not_private, refuse_used
from lightdp.schemes import scheme
from lightdp.training import data
from lightdp.training.config import WEIGHTS, Config
from lightdp.training.fitting import fitted

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_MOST_NAMES = 12
_ENDS = "real noise cannot be made again, so this run cannot go on; its log so far stays"


def _run(
    flags: dict[str, Any],
    *,
    graph: Annotated[
        str | None,
        typer.Option(help="Who shares noise with whom: complete or circulant:DEGREE.", rich_help_panel="Clients"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same names; flags win over it.")] = None,
    out: Annotated[Path, typer.Option(help="The log, as JSON lines; the page lies beside it.")] = Path("run.jsonl"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint beside the log.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files, whatever they hold; with --resume, the model alone.")
    ] = False,
    save_model: Annotated[
        Path | None, typer.Option(help="Keep the trained model: a new .safetensors or .pt file.")
    ] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the HTML page.")] = True,
    live: Annotated[bool, typer.Option("--live", help="Show the run in the browser while it trains.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page of --live.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the last line of the log instead of a table.")] = False,
) -> None:
    """Check, train with a progress bar on standard error, print the figures and what was guaranteed to whom."""
    given = ({} if config is None else read_toml(Config, config)) | flags | _degree(graph)
    try:
        chosen = Config(**given)
    except TypeError as error:
        raise ArgumentError(f"config has a value of the wrong type: {error}") from None
    page = _checked(out, save_model, resume=resume, overwrite=overwrite, report=report)
    _show(out, live=live, browser=browser)
    screen = Console(stderr=True)
    chosen, source = _fitted(chosen, given, screen)
    try:  # after the checks: they take seconds to import
        from lightdp.report import check_path, run_tables, save_runs, uploads  # noqa: PLC0415
        from lightdp.training.simulator import Run  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("train", "lightdp run") from None
    foreign = overwrite and not resume
    if page is not None:
        check_path(page, "page", overwrite=foreign)
    with screen.status("reading data"):
        run = Run(chosen, out, resume=resume, overwrite=overwrite, dataset=source)
    if not as_json:
        _print_start(run)
    finished = resume and RunLog.read(out, torn=True).ended is not None
    log = _finish(run, screen)
    if save_model is not None:
        run.save(save_model, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(log.outcome.to_dict()))
    else:
        table.show(run_tables([log])[0])
        for sentence in (*uploads(log), *_advice(log), *log.outcome.statement):
            typer.echo(sentence)
    if page is not None:
        save_runs([log], page, command_line(), name="page", overwrite=foreign)
    if not as_json:
        written = [str(path) for path in (None if finished else out, page, save_model) if path is not None]
        typer.echo(f"\n{f'{out} was already finished; ' if finished else ''}wrote {' and '.join(written) or 'nothing'}")


command = with_settings(_run, Config, leave_out=("degree",))  # `graph` says it


def _show(out: Path, *, live: bool, browser: bool) -> None:
    """Serve the page of the log until the command ends, if that was asked for."""
    if live:
        from lightdp.web import beside  # noqa: PLC0415  an optional dependency

        click.get_current_context().with_resource(beside(out, browser=browser))


def _degree(graph: str | None) -> dict[str, Any]:
    """The setting that `--graph` stands for.

    Raises:
        ArgumentError: it is no graph that a run can have.
    """
    if graph is None:
        return {}
    kind, _, degree = graph.partition(":")
    if graph == "complete" or (kind == "circulant" and degree.isdecimal()):
        return {"degree": int(degree) if degree else None}
    raise ArgumentError(
        "graph must be complete or circulant:DEGREE for lightdp run; random graphs are in lightdp plan, Client and "
        f"Server, got graph={graph!r}"
    )


def _fitted(chosen: Config, given: dict[str, Any], screen: Console) -> tuple[Config, data.Dataset | None]:
    """Settings that nobody gave and that follow from the clients of the data, and the data, if it was read for that."""
    if chosen.partition != "natural":
        return chosen, None
    with screen.status("reading data"):
        folder = None if chosen.data_path is None else Path(chosen.data_path)
        source = data.load(chosen.data, folder, chosen.layout)
    return fitted(chosen, source, given), source


def _checked(out: Path, model: Path | None, *, resume: bool, overwrite: bool, report: bool) -> Path | None:
    """The page beside the log, if there is to be one. Refuses files that cannot be written or are not to be replaced.

    Raises:
        ArgumentError: as `_output.check` says, or there is a log or a checkpoint and nobody asked to go on.
        MissingExtraError: safetensors is not installed.
    """
    _output.check("out", out, [".jsonl"], overwrite=True)
    if not resume and not overwrite:
        refuse_used(out, out.with_suffix(".checkpoint"), name="out")
    page = out.with_suffix(".html") if report else None
    if page is not None:
        _output.check("page", page, [".html"], overwrite=resume or overwrite)
    if model is not None:
        _output.check("save_model", model, WEIGHTS, overwrite=overwrite)
        if model.suffix == ".safetensors" and find_spec("safetensors") is None:
            raise MissingExtraError("train", "a .safetensors file")
    return page


def _print_start(run: Any) -> None:  # noqa: ANN401
    """Data, model, partition and plan."""
    config, sizes = run.config, run.partition
    records, labels = (
        f"{sizes[f'{what}_min']} to {sizes[f'{what}_max']} (median {sizes[f'{what}_median']:g})"
        for what in ("size", "labels")
    )
    for sentence in not_private(config.columns):
        typer.echo(sentence)
    source, module, start = (run.identity[name] for name in ("dataset", "module", "start"))
    typer.echo(f"{source['name']}, {module['name']} with {run.parameters:,} parameters on {run.device}")
    if start is not None:
        new, unused = start["new"], start["unused"]
        more = f"; new, since it has none for as many classes: {', '.join(new)}" if new else ""
        more += f"; {counted(len(unused), 'tensor')} of it unused: {', '.join(unused[:3])}" if unused else ""
        typer.echo(f"starts from {start['file']} (SHA-256 {start['digest'][:12]}){more}")
    among = f" in {len(run.members.rosters)} rosters that take turns" if config.federated else ""
    persons = "" if "persons" not in sizes else f", {sum(sizes['persons']):,} persons"
    spread = f"records {records}, different labels {labels}{persons}"
    typer.echo(f"{config.members} clients{among}, {config.partition}: {spread}")
    if names := sizes.get("names"):
        held = [f"{name} {sum(counts)}" for name, counts in zip(names, sizes["counts"], strict=True)]
        more = f" and {len(held) - _MOST_NAMES} more" if len(held) > _MOST_NAMES else ""
        typer.echo(f"records to train on: {'; '.join(held[:_MOST_NAMES])}{more}")
    for note in run.notes:
        typer.echo(note)
    typer.echo()
    if run.plan is not None:
        typer.echo(f"{page(run.plan, 'person' if config.unit == 'person' else None)}\n")


def _advice(log: RunLog) -> Iterator[str]:
    """Which flags help where late uploads ended the training, or too few members came to many rounds."""
    void = sum(line.roster is not None and line.used == log.late_by_one(line) == 0 for line in log.rounds)
    if log.federated and 4 * void > len(log.rounds):
        yield (
            f"{void:,} of {len(log.rounds):,} rounds had too few uploads, since members that are away count as "
            "stragglers: a larger --stragglers bears more of them, a smaller --patience forms new rosters sooner."
        )
    late = any(line.late > 0 and line.used > 0 for line in log.rounds)
    if late and log.outcome.stopped == "budget" and not log.grace and log.repairs and scheme(log.scheme).deployable:
        yield (
            "Late uploads used up budgets: --grace 1 would use those that are one round late, and a larger --late "
            "SHARE would plan for the others."
        )


def _finish(run: Any, screen: Console) -> RunLog:  # noqa: ANN401
    """Train to the end and return the log; Ctrl-C says how to go on and exits with 130."""
    words = "accuracy {task.fields[accuracy]}  ε {task.fields[epsilon]}  μ {task.fields[mu]}"
    words += "  stragglers {task.fields[missing]}"
    columns = "round", MofNCompleteColumn(), BarColumn(bar_width=None), words, TimeRemainingColumn()
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("run", total=run.config.rounds, accuracy="-", epsilon="-", mu="-", missing="-")

        def show(line: Line) -> None:
            if isinstance(line, Round):
                shown: dict[str, Any] = {"missing": line.late + line.lost}  # of the round's own sum
                shown |= {} if line.accuracy is None else {"accuracy": f"{line.accuracy:.1%}"}
                spent = {"epsilon": line.epsilon, "mu": line.mu}
                shown |= {name: rounded_up(value, 3) for name, value in spent.items() if value is not None}
                bar.update(task, completed=line.round, **shown)

        try:
            return run.finish(show)
        except KeyboardInterrupt:
            bar.stop()
            goes_on = _ENDS if run.config.fidelity == "protocol" else "the same command with --resume goes on"
            typer.echo(f"interrupted after round {run.state.round}; {goes_on}", err=True)
            sys.exit(130)
