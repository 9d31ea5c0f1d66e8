"""Runs that are kept: a line of JSON for each, in files that say what kind of run; what is there is not run again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from lightdp._validate import integer
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.planning import Plan
from lightdp.runlog import ResumeError
from lightdp_lab.reproduce import FINE, same

try:
    import torch

    from lightdp.training import data, models
    from lightdp.training.config import Config
    from lightdp.training.simulator import Run
except ImportError:
    raise MissingExtraError("train", "lightdp reproduce") from None

from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.synchronize import Event

from lightdp import runlog

Prepared = tuple[data.Dataset, torch.Tensor, torch.Tensor]
Watch = Callable[[Config, runlog.Line], None]

_WORK = ".work"
Line = dict[str, Any]
_over: Event | None = None
_busy = False


class Results:
    """The lines of a folder, by the settings of their runs.

    Args:
        folder: is read whole, and made when the first line is added.

    Raises:
        ArgumentError: it is no folder, or one of its lines is not JSON with a config.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ArgumentError(f"results must be a folder, got results={str(folder)!r}")
        self.folder = folder
        self._lines: dict[str, Line] = {}
        usual = same(Config()) | FINE  # a setting that a line lacks is newer than the line, which ran without it
        for path in sorted(folder.glob("*.jsonl")):
            for number, text in enumerate(path.read_bytes().splitlines(), 1):
                try:
                    line = json.loads(text)
                    line["config"] = usual | line["config"]
                except (KeyError, TypeError, ValueError) as error:  # ValueError: neither JSON nor UTF-8
                    wrong = f"got {path}:{number}: {error!r}"
                    raise ArgumentError(f"results must be lines of JSON with a config, {wrong}") from None
                self._lines[_key(line["config"])] = line

    def runs(self) -> list[Line]:
        """All but sensitivities."""
        return [line for line in self._lines.values() if "ratio" not in line]

    def sensitivities(self) -> list[Line]:
        """What `lightdp_lab.sensitivity` found."""
        return [line for line in self._lines.values() if "ratio" in line]

    def get(self, settings: dict[str, Any]) -> Line | None:
        """The line of these settings, as they are kept."""
        return self._lines.get(_key(settings))

    def find(self, config: Config) -> Line | None:
        """The run of these settings, if there is one."""
        return self.get(same(config))

    def add(self, config: Config, line: Line) -> None:
        """Keep a run, at the end of its file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kind = "sensitivity" if "ratio" in line else "paper" if config.unit == "paper" else "training"
        path = self.folder / f"{'quick' if config.data == 'digits' else kind}-{config.model}.jsonl"
        ended = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if ended else "\n") + json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines[_key(line["config"])] = line


def _key(config: dict[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def play(
    configs: Sequence[Config], results: Results, *, jobs: int = 1, watch: Watch = lambda *_: None
) -> Iterator[tuple[Config, Line]]:
    """Run what `results` does not have, several at once if asked for, and yield each run as it ends, kept already.

    An interrupted run leaves a checkpoint, from which the next call goes on. With one job, `watch` sees its rounds.
    With several, a run that fails does not stop the others: its error is raised when they are done.
    """
    integer("jobs", jobs, 1)  # before a folder is made
    missing = [config for config in configs if results.find(config) is None]
    work = results.folder / _WORK
    if missing:
        work.mkdir(parents=True, exist_ok=True)
    alone = ((config, trial(config, work, watch)) for config in missing)
    with closing(alone if jobs == 1 else _pool(missing, work, jobs)) as made:  # an interrupt here ends the processes
        for config, line in made:
            kept = line | {"beside": jobs - 1}
            results.add(config, kept)
            for file in _files(config, work):  # only now
                file.unlink(missing_ok=True)
            yield config, kept


def _pool(configs: Sequence[Config], work: Path, jobs: int) -> Generator[tuple[Config, Line]]:
    """`trial` of each, in processes of their own, in the order in which they end."""
    context, failed = multiprocessing.get_context("spawn"), []
    over, strangers = context.Event(), set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_share, initargs=(jobs, over)) as pool:
        try:
            waiting = {pool.submit(_beside, config, work): config for config in configs}
            for done in as_completed(waiting):
                if (error := done.exception()) is None:
                    yield waiting[done], done.result()
                else:
                    failed.append(error)
        except BaseException:
            over.set()
            for process in set(multiprocessing.active_children()) - strangers:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise failed[0]


def _files(config: Config, work: Path) -> tuple[Path, Path]:
    path = work / f"{hashlib.sha256(_key(same(config)).encode()).hexdigest()[:24]}.jsonl"
    return path, path.with_suffix(".checkpoint")


def _share(jobs: int, over: Event) -> None:
    """One of `jobs` processes on the same machine: a core, and its share of a GPU's memory, until all is `over`."""
    global _over  # noqa: PLW0603  a process has no other way to hand it to its runs
    _over = over
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; who started us says when
    signal.signal(signal.SIGTERM, _end)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1 / jobs)


def _end(*_: object) -> None:
    """End the run of this process, if there is one: at any moment it keeps the rounds that are over."""
    if _busy:
        raise KeyboardInterrupt


def _beside(config: Config, work: Path) -> Line:
    """`trial` in a process of its own."""
    global _busy  # noqa: PLW0603
    _busy = True  # before the look at `over`, which was set before anybody was told to end
    try:
        if _over is not None and _over.is_set():
            raise KeyboardInterrupt
        return trial(config, work)
    finally:
        _busy = False


def trial(config: Config, work: Path, watch: Watch = lambda *_: None) -> Line:
    """One run, whole or from its checkpoint, as the line to keep of it; its files stay."""
    path, checkpoint = _files(config, work)
    where = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    source, *features = prepared(config.data, config.data_path, config.model, config.mirror, where)

    def played(*, resume: bool) -> tuple[Run, runlog.RunLog]:
        run = Run(config, path, resume=resume, overwrite=not resume, dataset=source, prepared=tuple(features))
        return run, run.finish(lambda line: watch(config, line))

    try:
        run, log = played(resume=checkpoint.exists())
    except ResumeError:  # nobody but us keeps these files: what is damaged or outdated is made anew
        run, log = played(resume=False)
    return summary(run, log)


def summary(run: Run, log: runlog.RunLog) -> Line:
    """The line to keep of a run that has ended.

    Args:
        run: its settings, plan and partition.
        log: what it wrote.
    """
    config, started, end, plan = run.config, log.started, log.outcome, run.plan
    kept = {
        "config": same(config),
        **{name: getattr(end, name) for name in ("accuracy", "rounds", "stopped", "epsilon")},
        "epsilon_round": None if plan is None else Plan(plan.request.but(rounds=1), plan.noise).epsilon(),
        "noise": statistics.fmean(std for line in log.rounds if (std := line.noise_std) is not None),
        "smallest": run.partition["size_min"],
        "curve": _curve(log),
        "seconds": round(end.seconds, 2),
        "device": torch.cuda.get_device_name() if run.device.type == "cuda" else "cpu",
        "versions": started.versions,
        "commit": started.commit,
    }
    if started.network is not None:
        kept |= {"trips": started.network["trips"], "time_measured": started.network["measured"]}
        kept["failed"] = sum(line.failed is not None for line in log.rounds)
    return kept


@lru_cache(maxsize=1)
def prepared(name: str, path: str | None, model: str, mirror: bool, device: str) -> Prepared:
    """The data, and records and tests as the model wants them: made once for runs that follow each other."""
    source = data.load(name, None if path is None else Path(path))
    both = (models.prepare(model, torch.from_numpy(x), device, mirror=mirror) for x in (source.train_x, source.test_x))
    return (source, *both)


def _curve(log: runlog.RunLog) -> list[list[float]]:
    """Round and accuracy, and modelled seconds until then where there are any."""
    times: list[list[float]] = [[float(f"{seconds:.4g}")] for seconds in log.clock] or [[]] * len(log.rounds)
    both = zip(log.rounds, times, strict=True)
    return [[line.round, line.accuracy, *time] for line, time in both if line.accuracy is not None]
