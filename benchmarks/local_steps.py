"""Local work of 50 clients: ours against plain loops, side by side in one run, as medians with their conditions.

Run: python benchmarks/local_steps.py           small models on the CPU, beside opacus where it is installed
     python benchmarks/local_steps.py --cuda    ResNet-18, batch 32, one local epoch of 50,000 images
     python benchmarks/local_steps.py --views   WRN-16-4 with views of each record, on CUDA
     --part 10                                  the eager loop on 10 of the 50 clients, counted 5 times
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from lightdp.training import fast, gradients, models, sgd, views
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run

try:
    import opacus  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from opacus.grad_sample import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        GradSampleModule,
        GradSampleModuleFastGradientClipping,
    )
except ImportError:
    opacus = None  # its columns are left out; they were recorded with opacus 1.6.0

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    Views = Callable[[Tensor, slice | Tensor], Tensor] | None

CLIENTS = 50
SMALL = [(name, (1, side, side)) for name in ("linear", "cnn") for side in (8, 28)]
SMALL += [("scattering-cnn", (81, side, side)) for side in (2, 7)]  # features of the same images


def eager(model: nn.Module, x: Tensor, y: Tensor, plans: list[Tensor], lr: float) -> list[Tensor]:
    """What one writes without a thought: client after client, batch after batch."""
    updates = []
    for plan in plans:
        local = copy.deepcopy(model)
        sgd = torch.optim.SGD(local.parameters(), lr=lr)
        for rows in plan:
            batch = rows[rows >= 0].to(x.device)
            sgd.zero_grad()
            cross_entropy(local(x[batch]), y[batch]).backward()
            sgd.step()
        updates.append(gradients.flatten(local) - gradients.flatten(model))
    return updates


def record_by_record(model: nn.Module, x: Tensor, y: Tensor, owner: Tensor, clip: float) -> Tensor:
    """Clipped sums by one backward pass for each record."""
    sums = torch.zeros(CLIENTS, len(gradients.flatten(model)))
    for record, label, client in zip(x, y, owner, strict=True):
        loss = cross_entropy(model(record[None]), label[None])
        g = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        sums[client] += g * (clip / g.norm()).clamp_max(1)
    return sums


def by_vmap(model: nn.Module, x: Tensor, y: Tensor, owner: Tensor, clip: float, *, views: Views = None) -> Tensor:
    """Clipped sums as for a model whose layers are not known."""
    with patch.object(fast, "knows", return_value=False):
        return gradients.clipped_sums(model, x, y, owner, CLIENTS, clip, views=views)


def by_opacus(model: nn.Module, x: Tensor, y: Tensor, clip: float, *, piece: int, functorch: bool = False) -> Tensor:
    """The same by opacus' gradients of every record, `piece` clients at once, each with as many records."""
    each, sums = len(y) // CLIENTS, []
    hooked = GradSampleModule(copy.deepcopy(model), loss_reduction="sum", force_functorch=functorch)
    for images, labels in zip(x.split(piece * each), y.split(piece * each), strict=True):
        hooked.zero_grad()
        cross_entropy(hooked(images), labels, reduction="sum").backward()
        g = [p.grad_sample.flatten(1) for p in hooked.parameters()]
        norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in g]).norm(dim=0)
        factors = (clip / norms).clamp_max(1).unflatten(0, (-1, 1, each))
        sums.append(torch.cat([torch.bmm(factors, part.unflatten(0, (-1, each)))[:, 0] for part in g], 1))
    return torch.cat(sums)


def by_ghosts(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The same by opacus' norms of every record without its gradient, then one weighted pass for each client."""
    hooked = GradSampleModuleFastGradientClipping(
        copy.deepcopy(model), loss_reduction="sum", max_grad_norm=clip, use_ghost_clipping=True
    )
    cross_entropy(hooked(x), y, reduction="sum").backward()
    each, sums = len(y) // CLIENTS, []
    for images, labels, factors in zip(
        x.split(each), y.split(each), hooked.get_clipping_coef().split(each), strict=True
    ):
        loss = cross_entropy(model(images), labels, reduction="none") @ factors.detach()
        sums.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(sums)


def medians(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, in turns, after one run of each to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            _wait()
            start = time.perf_counter()
            work()
            _wait()
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def on_cuda(part: int, repeats: int) -> dict[str, object]:
    """Seconds of a round of ResNet-18, and how far its updates are from those in float64."""
    x, y, parts = _records_of((3, 32, 32), 1000, "cuda")
    model = models.build("resnet18", (3, 32, 32), 10, seed=0).cuda()
    plans = [sgd._batches(p, 1, 32, (0, i)) for i, p in enumerate(parts)]  # noqa: SLF001  the same work for both

    def ours(lr: float = 0.01, subset: list[Tensor] = parts) -> Tensor:
        return sgd.local_updates(model, x, y, subset, epochs=1, batch=32, lr=lr, seed=0, round=1)

    start = time.perf_counter()
    ours()
    _wait()
    first = time.perf_counter() - start
    seconds = medians({"eager": lambda: eager(model, x, y, plans[:part], 0.01), "ours": ours}, repeats)
    eager_round = seconds["eager"] * CLIENTS / part
    row = {"eager_s": eager_round, "ours_s": seconds["ours"], "ratio": eager_round / seconds["ours"], "first_s": first}
    row |= {f"round_{name}": value for name, value in simulated(x, y, max(repeats, 10)).items()}
    row["round_ratio"] = eager_round / row["round_s"]
    torch.backends.cudnn.allow_tf32 = False
    few = [p[:128] for p in parts[:2]]
    kept = [sgd._batches(p, 1, 32, (0, 21, 1, i)) for i, p in enumerate(few)]  # noqa: SLF001
    exact = torch.stack(eager(copy.deepcopy(model).double(), x.double(), y, kept, 1e-4))
    plain = torch.stack(eager(model, x, y, kept, 1e-4))
    torch.backends.cudnn.allow_tf32 = True
    with torch.autocast("cuda", torch.bfloat16):
        mixed = torch.stack(eager(model, x, y, kept, 1e-4))
    errors = {"float32": plain, "autocast": mixed, "ours": ours(1e-4, few)}
    return row | {
        "relative_error": {name: float((u - exact).norm() / exact.norm()) for name, u in errors.items()},
        "eager_clients": part,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
        "device": torch.cuda.get_device_name(),
    }


def simulated(x: Tensor, y: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of whole rounds of the simulator with everybody there: local work, clipping, sum, noise, step, record."""
    images, labels = x.cpu().numpy(), y.cpu().numpy()
    data = Dataset(
        name="random", train_x=images, train_y=labels, test_x=images[:100], test_y=labels[:100], classes=10
    )  # fmt: skip
    config = Config(
        model="resnet18", unit="client", scheme="repair", clients=CLIENTS, colluders=10, stragglers=10, rounds=1000,
        arrivals="none", batch=32, local_lr=0.01, lr=1.0, evaluate_every=1000, device="cuda",
    )  # fmt: skip
    times = []
    with tempfile.TemporaryDirectory() as folder:
        play = Run(config, Path(folder) / "run.jsonl", dataset=data).lines()
        next(play)
        for turn in range(repeats + 2):  # two to warm up
            _wait()
            start = time.perf_counter()
            next(play)
            _wait()
            if turn > 1:
                times.append(time.perf_counter() - start)
    return {"s": statistics.median(times), "fastest_s": min(times), "slowest_s": max(times)}


def on_cpu(repeats: int) -> dict[str, object]:
    """Seconds of a round of small models: local SGD one by one or together, clipped sums in bulk or one by one."""
    rows: dict[str, object] = {}
    for name, shape in SMALL:
        x, y, parts = _records_of(shape, 24, "cpu")
        model = models.build(name, shape, 10, seed=0)
        plans = [sgd._batches(p, 1, 16, (0, i)) for i, p in enumerate(parts)]  # noqa: SLF001
        owner = torch.arange(CLIENTS).repeat_interleave(24)
        local = (model, x, y, plans, 0.1)
        works: dict[str, Callable[[], object]] = {
            "local: eager": partial(eager, *local),
            "local: one by one": partial(sgd._one_by_one, *local),  # noqa: SLF001
            "local: together": partial(sgd._together, *local),  # noqa: SLF001
            "sums: record by record": partial(record_by_record, model, x, y, owner, 1.0),
        }
        works |= {} if name == "linear" else {"sums: vmap": partial(by_vmap, model, x, y, owner, 1.0)}
        ours = partial(gradients.clipped_sums, model, x, y, owner, CLIENTS, 1.0)
        theirs = _peers(model, x, y) if name != "linear" else {}
        for peer, work in theirs.items():
            if not torch.allclose(work(), expected := ours(), atol=1e-4 * float(expected.abs().max())):
                raise ValueError(f"{peer} disagrees on {name} of {shape}")
        rows[f"{name} {shape[1]} x {shape[2]}"] = medians(works | theirs | {"sums: ours": ours}, repeats)
    return {"seconds": rows, "threads": torch.get_num_threads(), "opacus": getattr(opacus, "__version__", None)}


def with_views(repeats: int) -> dict[str, object]:
    """Images a second of clipped sums of WRN-16-4 on CIFAR-like images, by views of each record; vmap for a few."""
    x, y, _ = _records_of((3, 32, 32), 80, "cuda")
    owner = torch.zeros(len(y), dtype=torch.int64, device="cuda")
    model = models.build("wrn-16-4", (3, 32, 32), 10, seed=0).cuda()
    rates: dict[str, float] = {}
    for count in (1, 2, 4, 8, 16):
        drawn = torch.from_numpy(views.draw(np.random.default_rng(0), len(y), count)).cuda()
        seen = partial(_cropped, drawn)
        few = 160
        seconds = medians(
            {
                "ours": partial(gradients.clipped_sums, model, x, y, owner, CLIENTS, 1.0, views=seen),
                "vmap": partial(by_vmap, model, x[:few], y[:few], owner[:few], 1.0, views=seen),
            },
            repeats,
        )
        rates[f"{count} ours"] = count * len(y) / seconds["ours"]
        rates[f"{count} vmap"] = count * few / seconds["vmap"]
    return {
        "images_per_s": rates,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
        "device": torch.cuda.get_device_name(),
    }


def _cropped(drawn: Tensor, x: Tensor, rows: slice | Tensor) -> Tensor:
    return views.crops(x, drawn[rows])


def _peers(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    if opacus is None:
        print("opacus is not installed: its columns are left out", file=sys.stderr)
        return {}
    return {
        "sums: opacus, all clients at once": partial(by_opacus, model, x, y, 1.0, piece=CLIENTS),
        "sums: opacus, 10 clients at once": partial(by_opacus, model, x, y, 1.0, piece=10),
        "sums: opacus, client by client": partial(by_opacus, model, x, y, 1.0, piece=1),
        "sums: opacus by functorch, 10 at once": partial(by_opacus, model, x, y, 1.0, piece=10, functorch=True),
        "sums: opacus, ghost clipping": partial(by_ghosts, model, x, y, 1.0),
    }


def _records_of(shape: tuple[int, ...], each: int, device: str) -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(CLIENTS * each, *shape, generator=generator).to(device)
    y = torch.randint(10, (CLIENTS * each,), generator=generator).to(device)
    return x, y, list(torch.arange(CLIENTS * each).split(each))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Print one JSON record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--views", action="store_true")
    parser.add_argument("--part", type=int, default=CLIENTS)
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args()
    if wanted.views:
        row = with_views(wanted.repeats)
    else:
        row = on_cuda(wanted.part, wanted.repeats) if wanted.cuda else on_cpu(wanted.repeats)
    conditions = {"torch": torch.__version__, "python": platform.python_version(), "clients": CLIENTS}
    print(json.dumps(conditions | {"repeats": wanted.repeats} | row, indent=2))


if __name__ == "__main__":
    main()
