"""A start from noise: images, the file, the training that makes it, and private training from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from lightdp.errors import ArgumentError
from lightdp.training import models
from lightdp.training import weights as files
from lightdp.training.data import Dataset
from lightdp_lab.prior import beside, commands, finetune, pretrain, probe, processes, start
from lightdp_lab.prior.augment import view
from lightdp_lab.prior.recipe import Recipe
from lightdp_lab.reproduce import cells, started
from lightdp_lab.results import Results
from support.command_line import assert_refused

if TYPE_CHECKING:
    from support.command_line import Run

TINY: dict[str, Any] = {"model": "cnn", "steps": 3, "batch": 4, "side": 32, "pool": 8, "fresh": 1}


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("leaves", [0.0, 0.5, 1.0])
def test_images_follow_from_the_seed_and_differ_from_each_other(leaves: float) -> None:
    images = processes.sample(6, 16, draw(), leaves=leaves)
    assert images.shape == (6, 3, 16, 16)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert torch.equal(images, processes.sample(6, 16, draw(), leaves=leaves))
    assert not torch.equal(images, processes.sample(6, 16, draw(1), leaves=leaves))
    apart = torch.cdist(images.flatten(1), images.flatten(1)).fill_diagonal_(1.0)
    assert float(apart.min()) > 0.5
    assert float(images.std((1, 2, 3)).min()) > 0.01


def test_textures_have_mean_0_and_deviation_1() -> None:
    for images in (processes.coloured(5, 16, draw()), processes.generated(5, 16, draw())):
        torch.testing.assert_close(images.mean((1, 2, 3)), torch.zeros(5), atol=1e-4, rtol=0)
        torch.testing.assert_close(images.std((1, 2, 3)), torch.ones(5), atol=1e-2, rtol=0)


def test_a_view_of_one_colour_has_one_colour_and_views_differ() -> None:
    plain = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1).expand(20, 3, 32, 32)
    seen = view(plain, 16, draw())
    assert seen.shape == (20, 3, 16, 16)
    assert float(seen.std((2, 3)).max()) < 1e-5
    assert float(seen[:, :, 0, 0].std(0).min()) > 0.01
    kept = view(plain, 16, draw(), jitter=0.0)
    assert float(kept.mean()) == pytest.approx(0.5, abs=0.02)


def test_the_loss_is_that_of_pairs_by_hand() -> None:
    features = torch.randn(6, 5, generator=draw(), dtype=torch.float64)
    unit = (features / features.norm(dim=1, keepdim=True)).numpy()
    terms = []
    for i in range(6):
        likes = {j: np.exp(unit[i] @ unit[j] / 0.3) for j in range(6) if j != i}
        terms.append(-np.log(likes[(i + 3) % 6] / sum(likes.values())))
    assert float(pretrain.contrast(features, 0.3)) == pytest.approx(np.mean(terms))


def test_training_moves_all_layers_follows_from_the_seed_and_keeps_its_command(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.safetensors" for name in ("one", "two", "other")]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        commands.make(Recipe(**TINY, seed=seed), out=path, device="cpu")
    one, two, other = (start.read(path) for path in paths)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert one[1]["steps"] == "3 of 3"
    assert one[1]["command"] == Recipe(**TINY).command
    assert any(not torch.equal(one[0][name], other[0][name]) for name in one[0])
    fresh = dict(models.build("cnn", (3, 32, 32), 10, 0).named_parameters())
    body = {name: value for name, value in fresh.items() if not name.startswith("9.")}
    assert len(body) == len(fresh) - 2
    assert all(not torch.equal(one[0][name], value.half().float()) for name, value in body.items())
    assert len(one[0]) == len(fresh)  # the fixed map in place of the last layer
    assert all(torch.equal(two[0][name], value) for name, value in one[0].items())


def test_an_interrupt_keeps_the_weights_so_far(tmp_path: Path) -> None:
    def stop(_: pretrain.Made) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain.make(Recipe(**TINY | {"steps": 25}), tmp_path / "cut.safetensors", watch=stop)
    assert start.read(tmp_path / "cut.safetensors")[1]["steps"] == "20 of 25"


def test_steps_lower_the_loss() -> None:
    training = pretrain.Pretraining(Recipe(**TINY | {"fresh": 0, "jitter": 0.0, "smallest": 1.0, "batch": 8}), "cpu")
    losses = [float(training.step(1.0)) for _ in range(25)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: raw[:4], lambda raw: b"\xff" * 8 + raw[8:]])
def test_a_damaged_start_is_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "start.safetensors"
    start.write(path, {"a": torch.arange(6.0).view(2, 3)}, {"command": "c"})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArgumentError, match="start must be a whole file of weights"):
        start.read(path)
    with pytest.raises(ArgumentError, match="start must have"):
        start.put(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {"0.weight": torch.ones(3, 2)})
    with pytest.raises(ArgumentError, match="finite"):
        start.write(path, {"a": torch.tensor([1e6])}, {})
    files.write(path, {"a": torch.tensor([math.inf])}, overwrite=True)
    with pytest.raises(ArgumentError, match="start must be finite"):
        start.read(path)


def pictures() -> Dataset:
    """Bright and dark images of two kinds."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    x = (rng.normal(size=(200, 3, 32, 32)) + (2 * y - 1)[:, None, None, None]).astype(np.float32)
    return Dataset(name="toy", train_x=x[:160], train_y=y[:160], test_x=x[160:], test_y=y[160:], classes=2)


def test_held_out_records_are_not_trained_on_and_a_linear_model_tells_kinds_apart() -> None:
    source = pictures()
    held = finetune.held_out(source)
    assert (len(held.train_y), len(held.test_y)) == (144, 16)
    both = np.concatenate([held.train_x, held.test_x]).reshape(160, -1)
    assert {row.tobytes() for row in both} == {row.tobytes() for row in source.train_x.reshape(160, -1)}
    model = models.build("cnn", (3, 32, 32), 2, 0)
    assert probe.linear(model, source, "cpu", iterations=20) > 0.9


def test_a_trial_starts_from_the_file_and_is_not_run_twice(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    commands.make(Recipe(**TINY), out=path, device="cpu")
    (config,) = started(
        epsilons=(6.0,), seeds=(0,), model="cnn", clients=8, colluders=1, stragglers=1, rounds=13, head_rounds=3,
        augment=1, partition="iid", sampling_rate=0.5, evaluate_every=5, device="cpu",
    )  # fmt: skip
    line = finetune.trial(config, path, tmp_path, pictures())
    assert 0 < line["epsilon"] <= 6
    assert line["made_by"] == Recipe(**TINY).command
    kept = (tmp_path / "training-prior-cnn.jsonl").read_text()
    assert finetune.trial(config, path, tmp_path, pictures()) == json.loads(kept)
    assert (tmp_path / "training-prior-cnn.jsonl").read_text() == kept
    with pytest.raises(ArgumentError, match="unknown"):
        started(unknown=1)


def test_features_of_both_kinds_stand_side_by_side_and_their_runs_apart_from_others(tmp_path: Path) -> None:
    path, source = tmp_path / "start.safetensors", pictures()
    commands.make(Recipe(**TINY), out=path, device="cpu")
    train, test = beside.features(path, source, "cpu", 3.0)
    maps = models.prepare("scattering-linear", torch.from_numpy(source.test_x), "cpu", mirror=True).flatten(1)
    body = finetune.begun(path, "cnn", 2)[:-1]
    with torch.no_grad():
        both = [body(x) for x in (torch.from_numpy(source.test_x), torch.from_numpy(source.test_x).flip(3))]
    assert train.shape == (160, 7776 + 64)
    assert torch.equal(test[:, :7776], maps)
    torch.testing.assert_close(test[:, 7776:], 1.5 * (both[0] + both[1]), rtol=1e-4, atol=1e-4)
    assert beside.features(path, source, "cpu", 0.0)[1].shape == (40, 7776)
    (usual,) = cells("rounds", "repair", model="scattering-linear", epsilons=(3.0,), schemes=("repair",), trials=1)
    few: dict[str, Any] = {"clients": 8, "colluders": 1, "stragglers": 1, "rounds": 5}
    config = dataclasses.replace(usual, **few, partition="iid", device="cpu")
    line = beside.trial(config, path, tmp_path, source, (train, test), scale=3.0)
    assert 0 < line["epsilon"] <= 3
    kept = (tmp_path / "scale-3" / "extras" / "training-prior-scattering-linear.jsonl").read_text()
    assert beside.trial(config, path, tmp_path, source, (train, test), scale=3.0) == json.loads(kept)
    assert Results(tmp_path).runs() == []
    beside.trial(config, path, tmp_path, source, (train, test), scale=3.0, note="a tenth held out")
    assert (tmp_path / "scale-3" / "held-out" / "training-prior-scattering-linear.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--scale", "-1"), "scale must be finite"),
        (("--seeds", "-1"), "seeds must be"),
        (("--schemes", "nobody"), "schemes must name"),
        (("--set", "colour=1"), "set must name settings"),
    ],
)
def test_a_linear_model_on_both_refuses_what_it_cannot_do(run: Run, flags: tuple[str, str], words: str) -> None:
    assert_refused(run("prior", "linear", "start.safetensors", *flags), words)


def test_the_map_of_a_start_takes_the_mean_out_of_features_and_most_of_their_correlation() -> None:
    features = torch.randn(4000, 6, generator=draw()) @ torch.randn(6, 6, generator=draw(1)) + 5
    matrix, bias = start.whitening(features)
    seen = features @ matrix.T + bias
    torch.testing.assert_close(seen.mean(0), torch.zeros(6), atol=1e-3, rtol=0)
    assert float(seen.norm(dim=1).mean()) == pytest.approx(4.0, rel=1e-3)
    before, after = (torch.linalg.eigvalsh(torch.cov(x.T)) for x in (features, seen))
    assert float(after[-1] / after[0]) < 0.2 * float(before[-1] / before[0])


def test_the_length_of_filters_does_not_change_what_a_start_computes(tmp_path: Path) -> None:
    path, x = tmp_path / "start.safetensors", torch.rand(2, 3, 32, 32, generator=draw())
    commands.make(Recipe(**TINY | {"model": "wrn-16-4", "steps": 1}), out=path, device="cpu")
    whole, half = (finetune.begun(path, "wrn-16-4", 10, length=length) for length in (1.0, 0.5))
    with torch.no_grad():
        torch.testing.assert_close(whole[:-1](x), half[:-1](x), rtol=1e-3, atol=1e-3)
    assert not torch.equal(whole[0].weight, half[0].weight)


def test_the_start_of_the_repository_is_whole_and_its_runs_are_found() -> None:
    root = Path(__file__).parents[2]
    model = finetune.begun(root / finetune.START, "wrn-16-4", 10)
    assert float(model[-2].weight.abs().max()) > 0
    kept = Results(root / "results")
    lines = [kept.find(config) for config in started(seeds=(0,))]
    digest = hashlib.sha256((root / finetune.START).read_bytes()).hexdigest()
    assert {line["start"] for line in lines if line is not None} == {digest}
    assert {line["filters"] for line in lines if line is not None} == {finetune.LENGTH}
    assert all(len(line["commit"]) == 40 for line in lines if line is not None)
    assert all(line["epsilon"] <= line["config"]["epsilon"] for line in lines if line is not None)


def test_the_profile_shows_what_is_kept_and_refuses_other_targets(run: Run) -> None:
    shown = run("reproduce", "rounds", "--profile", "prior", "--no-run", "--json")
    assert shown.code == 0
    assert {cell["scheme"] for cell in json.loads(shown.out)} == {"repair", "central"}
    assert_refused(run("reproduce", "table2", "--profile", "prior"), "target must be rounds")


def test_lines_of_the_results_are_found_again_although_settings_came_later(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "results" / "training-prior-wrn-16-4.jsonl"
    shutil.copy(kept, tmp_path)
    lines = [json.loads(text) for text in kept.read_text(encoding="utf-8").splitlines()]
    assert {"masks" in line["config"] for line in lines} == {False, True}

    def never(log: Path, *, resume: bool) -> dict[str, Any]:
        raise AssertionError((log, resume))

    for line in lines:
        asked = {name: line["config"][name] for name in ("epsilon", "seed", "scheme")}
        [config] = started(epsilons=(asked["epsilon"],), seeds=(asked["seed"],), schemes=(asked["scheme"],))
        facts = {name: line[name] for name in ("start", "filters", "note")}
        assert finetune.once(tmp_path, config, facts, never)["accuracy"] == line["accuracy"]
