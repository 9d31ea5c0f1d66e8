"""The tutorials and the example of an own model do what they say, each as one script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.docs import ROOT, Reader, blocks

TUTORIALS = ROOT / "docs/tutorials"
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DISABLE_METRICS_EXPORT": "1"}


def ran(script: str, folder: Path) -> str:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=os.environ | SILENT, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def percent(pattern: str, text: str) -> float:
    found = re.search(pattern + r"([0-9.]+)%", text)
    assert found is not None, text
    return float(found[1])


def test_the_first_training_prints_what_its_page_shows(tmp_path: Path) -> None:
    page = TUTORIALS / "first-training.md"
    reader = Reader(page, tmp_path)
    reader.follow()
    printed = "".join(reader.printed)
    found = printed.replace("\n", " ")
    for block in blocks(page, "text"):
        shown = [line.strip() for line in block.text.splitlines() if line.strip() not in ("...", "")]
        assert [line for line in shown if line not in found] == []
    assert "holds: what the log says of privacy follows from its rounds" in printed
    assert all((reader.clone / name).is_file() for name in ("run.html", "three.html", "model.safetensors"))


def test_an_own_model_on_own_arrays_learns_and_comes_back_from_its_file(tmp_path: Path) -> None:
    out = ran((ROOT / "examples/own_model.py").read_text(), tmp_path)
    assert "__main__.Corners on corners: " in out
    assert percent("on corners: ", out) > 85
    assert percent("the model of the file: ", out) == percent("on corners: ", out)
    assert "new layers: none" in out


def test_what_was_simulated_trains_on_flower_alike(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    script = "\n\n".join(block.text for block in blocks(TUTORIALS / "simulation-to-flower.md", "python"))
    out = ran(script, tmp_path)
    simulated, flower = percent("simulated: ", out), percent("Flower: ", out)
    assert simulated > 75  # a third would be chance
    assert flower > 60  # its noise is real, and another each time
    texts = [(tmp_path / f"{name}.jsonl").read_text() for name in ("simulated", "flower")]
    first, second = (json.loads(text.splitlines()[0]) for text in texts)
    assert first["dataset"]["name"] == "made records"
    for noise in ("sigma_individual", "sigma_pairwise", "clip", "rounds", "epsilon"):
        assert first["plan"][noise] == second["plan"][noise]
    assert (tmp_path / "flower.pt").exists()
