"""Units and containers to copy: every option is one of Flower's, and every limit one that a node reads."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # flwr brings it
from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from lightdp.flower._settings import Settings
from lightdp.keys import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/flower-minimal/deploy"
PARSERS: dict[str, Callable[[], Any]] = {
    "flower-superlink": _parse_args_run_superlink,
    "flower-supernode": _parse_args_run_supernode,
}


def environment() -> dict[str, str]:
    lines = (DEPLOY / "supernode.env").read_text().splitlines()
    return {key: shlex.split(value)[0] for key, _, value in (x.partition("=") for x in lines if not x.startswith("#"))}


def unit_command(name: str) -> list[str]:
    """As systemd makes it of a unit: ${NAME} is one word, whatever it holds."""
    text = (DEPLOY / f"{name}.service").read_text().replace("\\\n", " ")
    found = re.search(r"^ExecStart=(.*)$", text, flags=re.MULTILINE)
    assert found is not None
    return [re.sub(r"\$\{(\w+)\}", lambda name: environment()[name[1]], word) for word in found[1].split()]


def compose_command(name: str) -> list[str]:
    words = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]["command"]
    return [re.sub(r"\$\{(\w+):-[^}]*\}", lambda name: environment()[name[1]], word) for word in words]


COMMANDS = [
    unit_command("superlink"),
    unit_command("supernode"),
    compose_command("superlink"),
    compose_command("supernode"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: Path(each[0]).name)
def test_flower_knows_every_option_and_none_is_insecure(command: list[str]) -> None:
    found = PARSERS[Path(command[0]).name]().parse_args(command[1:])
    assert not found.insecure
    if command[0].endswith("superlink"):
        assert found.ssl_certfile
        assert found.ssl_keyfile
        assert found.enable_supernode_auth
        assert found.database
    else:
        assert found.root_certificates
        assert found.auth_supernode_private_key
        assert not any("runtime-dependency" in word for word in command)


@pytest.mark.parametrize("command", COMMANDS[1::2], ids=["unit", "container"])
def test_a_node_reads_its_limits_from_what_is_copied(command: list[str], tmp_path: Path) -> None:
    config = parse_config_args([PARSERS["flower-supernode"]().parse_args(command[1:]).node_config])
    Identity.generate().save(tmp_path / "identity")
    (tmp_path / "pins").touch()
    here = {f"lightdp-{name}": str(tmp_path / name) for name in ("identity", "pins")}
    settings = Settings.of(Context(1, 2, config | here, RecordDict(), {}))
    assert (settings.name, settings.unit, settings.max_epsilon, settings.total_epsilon) == ("node-7", "client", 8, 16)
    assert (settings.min_colluders, settings.max_stragglers, settings.max_delta) == (1, 2, 1e-5)
    assert settings.state is not None
    assert settings.anchor is not None
    assert settings.state.parent != settings.anchor.parent
    unit, compose = (DEPLOY / "supernode.service").read_text(), (DEPLOY / "compose.yaml").read_text()
    for folder in (settings.state.parent, settings.anchor.parent):  # both are kept, by systemd and by volumes
        assert re.search(rf"^StateDirectory=.*\b{folder.name}\b", unit, flags=re.MULTILINE)
        assert f":{folder} " in compose


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd here")
    units = []
    for name in ("superlink", "supernode"):
        units.append(tmp_path / f"{name}.service")
        here = (DEPLOY / units[-1].name).read_text().replace("/opt/lightdp/bin", str(Path(sys.executable).parent))
        units[-1].write_text(here)
    done = subprocess.run([verify, "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_volume_and_file_that_is_named_is_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    mounts = [mount.split(":")[0] for service in compose["services"].values() for mount in service["volumes"]]
    assert {each for each in mounts if not each.startswith((".", "/"))} == set(compose["volumes"])
    assert any(mount == "/etc/machine-id" for mount in mounts)
    text = (DEPLOY / "Dockerfile").read_text()
    for path in re.findall(r"(?:-c /source/|-f )(\S+)", text):
        assert (ROOT / path).exists(), path
