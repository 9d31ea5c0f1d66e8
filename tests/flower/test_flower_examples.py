"""The examples for Flower, run as their users run them: real processes, no network but loopback."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.accountant import Odometer
from lightdp.runlog import RunLog

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART, DEPLOYMENT = EXAMPLES / "flower-quickstart", EXAMPLES / "flower-deployment"
MINIMAL = EXAMPLES / "flower-minimal"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def tools() -> Any:
    """The deployment's processes, as a module; its folder is not on the path otherwise."""
    return module("processes")


def module(name: str) -> Any:
    """A module of the deployment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DEPLOYMENT))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Iterator[dict[str, str]]:
    """The environment in which `flwr run` finds a SuperLink for simulations."""
    folder = tmp_path_factory.mktemp("superlink")
    deployment = tools.Deployment(folder, nodes=0, plan=None, limit=600.0)
    (folder / "flwr").mkdir()
    (folder / "logs").mkdir()
    [port] = tools.free_ports(1)
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    deployment.start("superlink", "flower-superlink", "--insecure", "--simulation", "--port", str(port))
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                    break
            except OSError:
                time.sleep(0.1)
        yield deployment.environment | {"RAY_USAGE_STATS_ENABLED": "0"}
    finally:
        deployment.stop()
        assert tools.processes_of(folder) == []


def trained(app: str, environment: dict[str, str], folder: Path, **config: object) -> dict[str, float]:
    """What a run of the quickstart wrote as its result."""
    result = folder / "result.json"
    shutil.copytree(QUICKSTART / app, folder / app)
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in (config | {"result": str(result)}).items())
    command = [str(BIN / "flwr"), "run", str(folder / app), "here", "--stream", "--run-config", text]
    run = subprocess.run(
        [*command, "--federation-config", f"num-supernodes={config['clients']}"],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.exists(), run.stdout[-5000:] + run.stderr[-5000:]
    return dict(json.loads(result.read_text()))


def test_the_quickstart_learns_without_the_two_lines(superlink: dict[str, str], tmp_path: Path) -> None:
    result = trained("plain", superlink, tmp_path, clients=10, rounds=2)
    assert result["round"] == 2
    assert result["accuracy"] > 0.75
    assert result["train-loss"] > 0  # what a server sees of clients without the two lines
    assert "lightdp-epsilon" not in result


def test_the_quickstart_learns_with_them_and_spends_what_the_odometer_says(
    superlink: dict[str, str], tmp_path: Path
) -> None:
    result = trained("private", superlink, tmp_path, clients=10, rounds=2, epsilon=2000.0)
    plan = lightdp.plan(
        clients=10, colluders=1, stragglers=1, rounds=2, epsilon=2000, delta=1e-5, unit="client", clip=0.5,
        calibration="repair", momentum=0.0,
    )  # fmt: skip
    odometer = Odometer(plan)
    for _ in range(2):
        odometer.record(range(10), ())
    assert (result["round"], result["lightdp-used"], result["lightdp-late"]) == (2, 10, 0)
    assert result["lightdp-epsilon"] == odometer.max_epsilon() <= 2000
    assert result["accuracy"] > 0.75  # with so large an ε, the clip alone is felt
    assert "train-loss" not in result


def test_the_change_is_two_lines_their_imports_and_a_plan() -> None:
    removed, added = [], []
    for name in ("client_app.py", "server_app.py", "task.py"):
        plain, private = ((QUICKSTART / app / "quickstart" / name).read_text() for app in ("plain", "private"))
        for line in difflib.ndiff(plain.splitlines(), private.splitlines()):
            if line.startswith("- "):
                removed.append(line[2:].strip())
            elif line.startswith("+ "):
                added.append(line[2:].strip())
    begin, end = added.index("plan = lightdp.plan("), added.index(")")
    fedavg = "FedAvg(min_available_nodes=clients, fraction_evaluate=0.0)"
    assert removed == ["app = ClientApp()", f"strategy = {fedavg}"]
    assert added[:begin] + added[end + 1 :] == [
        "import lightdp.flower",
        "app = ClientApp(mods=[lightdp.flower.mod])",
        "import lightdp.flower",
        f"strategy = lightdp.flower.LightDP({fedavg}, plan)",
    ]


def test_no_client_of_the_quickstart_answers_what_is_not_protected() -> None:
    text = (QUICKSTART / "private" / "quickstart" / "client_app.py").read_text()
    assert [line for line in text.splitlines() if line.startswith("@app.")] == ["@app.train()"]


def test_the_configuration_changes_by_one_key_the_budget_and_the_dependency() -> None:
    plain, private = ((QUICKSTART / app / "pyproject.toml").read_text().splitlines() for app in ("plain", "private"))
    added = [line for line in private if line not in plain]
    assert [line.partition(" ")[0] for line in added] == ["dependencies", "epsilon", "lightdp-simulation"]


def test_the_app_to_copy_trains_as_it_says(superlink: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(MINIMAL, tmp_path / "app", ignore=shutil.ignore_patterns("deploy"))
    model, checkpoint, log = (tmp_path / name for name in ("model.npy", "checkpoint", "run.jsonl"))
    command = [str(BIN / "flwr"), "run", str(tmp_path / "app"), "here", "--stream", "--federation-config"]
    config = "plan.clients=4 plan.population=4 plan.rounds=1 plan.epsilon=1e9 least=3 wait=60 timeout=60"
    config += f' model="{model}" checkpoint="{checkpoint}" log="{log}"'
    run = subprocess.run(
        [*command, "num-supernodes=4", "--run-config", config],
        env=superlink, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert model.exists(), run.stdout[-5000:] + run.stderr[-5000:]
    assert checkpoint.exists()
    assert RunLog.read(log).ended is not None
    task = runpy.run_path(str(MINIMAL / "minimal" / "task.py"))
    plain = [task["trained"](task["model"](), *task["data"]({"partition-id": i})) for i in range(4)]
    assert np.linalg.norm(np.mean(plain, axis=0)) > 0.1
    assert np.load(model) == pytest.approx(np.mean(plain, axis=0), abs=1e-3)  # with so large an ε


def test_the_apps_to_copy_are_short_and_those_of_the_page() -> None:
    page = (MINIMAL.parents[1] / "docs" / "how-to" / "operate.md").read_text()
    for name in ("client_app.py", "server_app.py"):
        text = (MINIMAL / "minimal" / name).read_text()
        code = text.partition("from __future__ import annotations\n\n")[2]
        assert len([line for line in code.splitlines() if line.strip() and '"""' not in line]) <= 15
        assert f"```python\n{code}```\n" in page
    config = (MINIMAL / "pyproject.toml").read_text().partition("[tool.flwr.app.config]")
    assert f"```toml\n{config[1]}{config[2]}```\n" in page


def test_a_deployment_whose_server_is_killed_and_that_nodes_join_holds_what_it_promises(
    tmp_path: Path, tools: Any
) -> None:
    folder = tmp_path / "kept"
    run = subprocess.run(
        [sys.executable, DEPLOYMENT / "run.py", "--short", "--keep", folder],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ServerApp killed" in run.stdout
    assert tools.processes_of(folder) == []
    check_can_say_no(folder)


def check_can_say_no(folder: Path) -> None:
    check, server = module("check"), folder / "server"
    final, text = np.load(server / "model-final.npy"), (server / "events.jsonl").read_text()

    def denied() -> set[str]:
        return {claim.text[:11] for claim in check.judge(folder) if not claim.holds}

    assert denied() == set()
    noise = module("evidence").Evidence(folder).plan.sigma_individual / 2
    np.save(server / "model-final.npy", final + np.random.default_rng(0).normal(0, noise, final.shape))
    assert denied() >= {"each change"}
    np.save(server / "model-final.npy", final)
    (server / "events.jsonl").write_text(text.replace('"lightdp-epsilon": ', '"lightdp-epsilon": 1'))
    assert denied() == {"the server's"[:11]}
    (server / "events.jsonl").write_text(text.replace("lightdp/protocol: round", "something else"))
    assert denied() == {"asked for a"}
    state = next(iter(sorted((folder / "state").glob("*.json"))))
    (server / "events.jsonl").write_text(text)
    files = {each: each.read_bytes() for each in (state, Path(f"{state}.serial"))}
    lines = files[state].splitlines(keepends=True)
    assert "round" in json.loads(json.loads(lines[-1])["client"])
    state.write_bytes(b"".join(lines[:-1]))  # as if a node had not counted its last upload
    Path(f"{state}.serial").write_bytes(b"")
    assert denied() >= {"no node ans", "the server "}
    for each, content in files.items():
        each.write_bytes(content)
    assert denied() == set()


def test_an_interrupted_deployment_leaves_nothing_running(tmp_path: Path, tools: Any) -> None:
    folder = tmp_path / "kept"
    command = [sys.executable, str(DEPLOYMENT / "run.py"), "--short", "--keep", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        assert "SuperLink on" in run.stdout.readline()
        while not any("flower_supernode" in command_of(each) for each in tools.processes_of(folder)):
            assert run.poll() is None
            time.sleep(0.1)
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(timeout=60) == 130
    assert tools.processes_of(folder) == []


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
