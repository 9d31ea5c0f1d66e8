"""Runs as OpenMetrics text, for Prometheus and what reads the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The content type of `exposed`."""
_GAUGES = {  # name without its unit, what it is read from, unit, help
    "rounds": ("rounds", "", "Rounds that are over."),
    "rounds_planned": ("total", "", "Rounds that the run was started for."),
    "accuracy_ratio": ("accuracy", "ratio", "Test accuracy of the last model that was evaluated."),
    "loss": ("loss", "", "Test loss of the last model that was evaluated."),
    "epsilon": ("epsilon", "", "Privacy spent by the client that spent most, at the delta of the run."),
    "epsilon_budget": ("budget", "", "The epsilon that was asked for."),
    "mu": ("mu", "", "The mu of Gaussian noise with this epsilon at this delta."),
    "mu_budget": ("mu_budget", "", "The mu of Gaussian noise with the budget at this delta."),
    "noise_std": ("noise", "", "Lasting noise in a coordinate of the mean, root mean square over rounds."),
    "left_seconds": ("left", "seconds", "Time left at the pace of the last rounds."),
    "changed_timestamp_seconds": ("changed", "seconds", "When the log was written last."),
}
_FATES = {
    "used": "on_time", "next": "one_round_late", "late": "too_late", "void": "in_void_round", "lost": "lost",
}  # fmt: skip
_INFO = ("scheme", "data", "model_name", "unit", "adjacency", "delta", "status")


def exposed(runs: Iterable[dict[str, Any]], version: str) -> str:
    r"""The text; what is not known of a run is left out.

    >>> print(exposed([], "1.0"), end="")  # doctest: +ELLIPSIS
    # TYPE lightdp_build info
    # HELP lightdp_build The version of lightdp that serves this.
    lightdp_build_info{version="1.0"} 1
    ...
    # EOF

    Args:
        runs: as `figures` gives them.
        version: of this package.
    """
    return "".join(f"{line}\n" for line in (*_lines([run for run in runs if "rounds" in run], version), "# EOF"))


def _lines(runs: list[dict[str, Any]], version: str) -> Iterator[str]:
    yield from _head("build", "info", "", "The version of lightdp that serves this.")
    yield f"lightdp_build_info{_labels(version=version)} 1"
    yield from _head("run", "info", "", "A run in the folder.")
    for run in runs:
        facts = {name: run[name] for name in _INFO if run[name] is not None}
        yield f"lightdp_run_info{_labels(run=run['name'], **facts)} 1"
    for name, (key, unit, words) in _GAUGES.items():
        yield from _head(f"run_{name}", "gauge", unit, words)
        for run in runs:
            if run[key] is not None:
                yield f"lightdp_run_{name}{_labels(run=run['name'])} {float(run[key])!r}"
    yield from _head("run_ended", "gauge", "", "1 once the run has come to its end, 0 before.")
    for run in runs:
        yield f"lightdp_run_ended{_labels(run=run['name'])} {int(run['status'] == 'finished')}"
    yield from _head("run_uploads", "counter", "", "Uploads of all rounds, by what became of them.")
    for run in runs:
        for key, fate in _FATES.items():
            yield f"lightdp_run_uploads_total{_labels(run=run['name'], fate=fate)} {run['uploads'][key]}"


def _head(name: str, kind: str, unit: str, words: str) -> Iterator[str]:
    yield f"# TYPE lightdp_{name} {kind}"
    if unit:
        yield f"# UNIT lightdp_{name} {unit}"
    yield f"# HELP lightdp_{name} {words}"


def _labels(**values: object) -> str:
    texts = {
        name: str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in texts.items()) + "}"
