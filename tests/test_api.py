"""The promised API: `import lightdp` is light, and these names stay."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

import lightdp

ERRORS = {
    "ArgumentError",
    "BudgetError",
    "InfeasibleError",
    "LightDPError",
    "MissingExtraError",
    "ProtocolError",
    "WireError",
}
PROMISED = ERRORS | {
    "Aggregate",
    "Audit",
    "Client",
    "Config",
    "Dataset",
    "Federation",
    "Member",
    "File",
    "Identity",
    "Odometer",
    "Pins",
    "Plan",
    "Request",
    "Run",
    "Server",
    "audit",
    "digest",
    "errors",
    "flower",
    "plan",
    "plan_per_client",
    "predict",
}


def test_the_promised_names_are_these() -> None:
    assert lightdp.__all__ == sorted(lightdp.__all__)
    assert set(lightdp.__all__) == PROMISED
    assert dir(lightdp) == sorted(PROMISED)


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_promised_name_is_there_and_says_what_it_is(name: str) -> None:
    if name == "flower":
        pytest.importorskip("flwr")
    if name in ("Run", "predict"):
        pytest.importorskip("torch")
    found = getattr(lightdp, name)
    assert found.__doc__
    if not isinstance(found, ModuleType):
        assert found.__name__ == name
        assert found.__module__.startswith("lightdp.")
    assert f"`{name}`" in lightdp.__doc__ or name in ERRORS


def test_no_other_name_is_made_up() -> None:
    with pytest.raises(AttributeError, match="module 'lightdp' has no attribute 'plain'"):
        lightdp.plain  # noqa: B018


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_lightdp_loads_no_other_library() -> None:
    code = "import sys, lightdp; lightdp.errors; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = fresh(code)
    for library in ("numpy", "scipy", "torch", "flwr", "cryptography", "typer"):
        assert f"'{library}'" not in loaded
    assert "'numpy'" in fresh(code.replace("lightdp.errors", "lightdp.plan"))


@pytest.mark.parametrize(("library", "name", "extra"), [("torch", "Run", "train"), ("flwr", "flower", "flower")])
def test_a_name_whose_extra_is_missing_says_which(library: str, name: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
import lightdp
try:
    lightdp.{name}
except lightdp.MissingExtraError as error:
    print(error)
"""
    assert fresh(code) == f"lightdp.{name} needs an extra; from a clone: pip install '.[{extra}]'"


@pytest.mark.parametrize(
    "name",
    [name for name in lightdp.__all__ if name not in ("Aggregate", "Audit", "flower") and not name.endswith("Error")],
)
def test_every_promised_name_has_an_example(name: str) -> None:
    """`Client` shows what an `Aggregate` is, `audit` an `Audit`, `errors` the exceptions; Flower's lie in examples/."""
    pytest.importorskip("torch")
    assert ">>>" in (inspect.getdoc(getattr(lightdp, name)) or "")


def test_the_version_is_that_of_the_distribution() -> None:
    assert lightdp.__version__ == version("lightdp-fl")


def test_help_describes_every_setting() -> None:
    for field in dataclasses.fields(lightdp.Request):
        assert f"{field.name}: {field.metadata['help']}" in (lightdp.Request.__doc__ or "")
