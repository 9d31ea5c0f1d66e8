"""Logs of runs whose every figure is another one, read back, and pages taken apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from lightdp.runlog import RunLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Lines = list[dict[str, Any]]
PLAN = {
    "calibration": "repair",
    "epsilon_claimed": 3.0,
    "delta": 1e-5,
    "unit": "record",
    "adjacency": "add-remove",
    "sigma_individual": 2.345678,
}


def logged(scheme: str = "repair", rounds: int = 7, **changed: Any) -> Lines:
    """A log whose every figure is another one; `changed` goes into the end."""
    shift = 0.01 * ["none", "repair", "exact", "paper", "local", "central"].index(scheme)
    private = scheme != "none"
    first = {
        "kind": "run",
        "config": {"data": "digits", "scheme": scheme, "clients": 10, "lr": 2.5, "degree": None},
        "plan": PLAN | {"calibration": scheme} if private else None,
        "versions": {"torch": "2.13.0"},
        "commit": "0123abc",
        "partition": {"counts": [[3 * client + label for label in range(4)] for client in range(10)]},
        "parameters": 650,
        "device": "cpu",
    }
    played = [
        {
            "kind": "round",
            "round": t,
            "accuracy": None if t % 2 else 0.5 + shift + t / 1000,
            "loss": 2 / t,
            "epsilon": 0.4 * t + shift if private else None,
            "mu": 0.1 * t + shift if private else None,
            "used": 10 - t % 4,
            "late": t % 4 // 2,
            "lost": t % 4 - t % 4 // 2,
            "late_clients": [*range(t % 4 // 2)],
            "lost_clients": [*range(t % 4 // 2, t % 4)],
            "noise_std": 0.1 * t + shift if private else 0.0,
            "residual_std": 0.7 * t if scheme == "repair" else 0.0,
            "modelled_seconds": None,
            "failed": None,
        }
        for t in range(1, rounds + 1)
    ]
    end = {
        "kind": "end",
        "accuracy": 0.61234 + shift,
        "epsilon": 2.87654321 + shift if private else None,
        "mu": 0.6943 + shift if private else None,
        "epsilon_claimed": 3.0 if private else None,
        "delta": 1e-5 if private else None,
        "unit": "record",
        "adjacency": "add-remove",
        "rounds": rounds,
        "stopped": None,
        "bytes_up": 1463,
        "bytes_down": 2602,
        "seconds": 12.34,
        "statement": [f"A sentence about {scheme}.", "And another."],
    }
    return [first, *played, end | changed]


def written(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunLog]:
    """A log read back."""

    def read(scheme: str = "repair", name: str | None = None, lines: Lines | None = None, **changed: Any) -> RunLog:
        file = tmp_path / f"{scheme if name is None else name}.jsonl"
        return RunLog.read(written(file, logged(scheme, **changed) if lines is None else lines))

    return read


class Page(HTMLParser):
    """Tags with their attributes, text outside of scripts and styles, and the charts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.words).split())
        self.charts = [*unpacked(json.loads(self.scripts[0])).values()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  the name of what is overridden
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)


def unpacked(page: dict[str, Any]) -> dict[str, Any]:
    """The charts of a page by name, as `lightdp.report._packed` describes them."""

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return [whole(each) for each in part]
        match part:
            case {"#": place}:
                return whole(page["shared"][place])
            case {"*": [*pairs]}:
                return [
                    whole(value) for value, count in zip(pairs[::2], pairs[1::2], strict=True) for _ in range(count)
                ]
            case {"$": columns}:
                fields = {name: whole(column) for name, column in whole(columns).items()}
                return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
            case dict():
                return {name: whole(each) for name, each in part.items()}
        return part

    charts: dict[str, Any] = whole(page["charts"])
    return charts


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, list[RunLog]]:
    """The page of a repair run, an exact run cut off, and one without noise."""
    from lightdp.report._page import run_page  # noqa: PLC0415  it needs an extra, which other tests do without

    folder = tmp_path_factory.mktemp("runs")
    lines = {"repair": logged("repair"), "exact": logged("exact")[:-1], "none": logged("none")}
    runs = [RunLog.read(written(folder / f"{name}.jsonl", content)) for name, content in lines.items()]
    return Page(run_page(runs)), runs


def drawn(spec: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Of a panel of lines: {run: {round: value}}."""
    result: dict[str, dict[int, float]] = {}
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    for row in line.get("data", spec.get("data"))["values"]:
        result.setdefault(row["run"], {})[row["round"]] = row["value"]
    return result


def recorded(lines: Lines, field: str) -> dict[int, float]:
    """The values of a field by round, with the digits that pages keep."""
    return {line["round"]: float(f"{line[field]:.7g}") for line in lines[1:-1] if line[field] is not None}
