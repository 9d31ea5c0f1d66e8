from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, get_args

import pytest

from lightdp import schemes
from lightdp.errors import ArgumentError
from lightdp.planning import CalibrationName
from lightdp.training import channel
from lightdp.training.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where no other package is installed."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [])  # noqa: ARG005
    schemes.schemes.cache_clear()
    yield
    schemes.schemes.cache_clear()


def test_built_in_are_no_noise_and_every_calibration() -> None:
    assert {one.calibration for one in schemes.BUILT_IN.values()} == {None, *get_args(CalibrationName)}
    assert all(one.calibration in (None, name) for name, one in schemes.BUILT_IN.items())
    assert {name for name, one in schemes.BUILT_IN.items() if one.planned is None} == {"none", "auto"}


def test_names_labels_and_colours_differ() -> None:
    found = schemes.schemes()
    assert [*found] == [one.name for one in found.values()]
    for field in ("title", "label", "colour"):
        assert len({getattr(one, field) for one in found.values()}) == len(found), field


def test_the_lab_adds_its_schemes() -> None:
    assert schemes.scheme("secagg").simulated
    assert [*schemes.schemes()][: len(schemes.BUILT_IN)] == [*schemes.BUILT_IN]


@pytest.mark.usefixtures("alone")
def test_without_the_lab_built_in_schemes_work_and_others_are_unknown() -> None:
    assert schemes.schemes() == schemes.BUILT_IN
    assert not Config(scheme="repair").networked
    with pytest.raises(ArgumentError, match=r"scheme must be one of none, central, smpc, .*got scheme='secagg'"):
        Config(scheme="secagg")
    with pytest.raises(ArgumentError, match="links need lightdp_lab, which is not installed here"):
        channel.channel(Config(links="relayed"), None, 3, "cpu", lambda: bytes(32))


@pytest.mark.parametrize(
    ("name", "whom"),
    [
        ("central", "not the server, which saw every update"),
        ("local-paper", "the server together with all other clients"),
        ("dordis", "the server together with any 3 other clients"),
        ("ckks", "not covered: one client that helps the server"),
    ],
)
def test_a_scheme_says_whom_it_protects_against(name: str, whom: str) -> None:
    assert whom in schemes.scheme(name).against(3)


def test_a_run_without_a_network_loads_no_module_of_the_lab() -> None:
    code = (
        "import sys; from lightdp.training.config import Config; from lightdp.training.channel import channel\n"
        "channel(Config(), None, 3, 'cpu', lambda: bytes(32))\n"
        "sys.exit(any(name.startswith('lightdp_lab') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
