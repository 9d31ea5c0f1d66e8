"""An own model on own arrays: a small CNN tells pictures with a bright corner from others, for any one record ε = 8.

Run: python examples/own_model.py (half a minute on one core)
"""

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from torch import nn

import lightdp
from lightdp.runlog import Line, Round

# Own arrays: pictures as float32 (n, channels, height, width), labels as int64 from 0.
rng = np.random.default_rng(0)  # noqa: TID251  it makes data, and protects nothing
labels = rng.integers(0, 2, 1200)
pictures = rng.normal(0.4, 0.2, (1200, 1, 8, 8)).astype(np.float32)
pictures[labels == 1, :, :3, :3] += 0.4
data = lightdp.Dataset(
    name="corners", train_x=pictures[:1000], train_y=labels[:1000], test_x=pictures[1000:], test_y=labels[1000:],
    classes=2,
)  # fmt: skip


class Corners(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """An own model: one logit for each class, for each record by itself (GroupNorm, not BatchNorm)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.AvgPool2d(4))
        self.head = nn.Linear(8 * 2 * 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 1, 8, 8) to (n, 2)."""
        return self.head(self.body(x).flatten(1))


def show(line: Line) -> None:
    """Print every fifth round; without it a run trains in silence."""
    if isinstance(line, Round) and line.round % 5 == 0:
        print(f"round {line.round}: accuracy {line.accuracy:.1%}, ε = {line.epsilon:.2f}", flush=True)


torch.manual_seed(0)
folder = Path(mkdtemp())
config = lightdp.Config(clients=10, colluders=2, stragglers=2, rounds=30, epsilon=8.0, lr=1.0, clip=1.0)
run = lightdp.Run(config, folder / "run.jsonl", dataset=data, module=Corners())
log = run.finish(show)
print(f"{log.model} on {log.data}: {log.accuracy:.1%} of the test records at ε = {log.epsilon:.2f}")

# The model is `run.model`; a file keeps it, for torch or as the start of another run.
run.save(folder / "model.pt")
kept = Corners()
kept.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
with torch.no_grad():
    found = kept(torch.from_numpy(data.test_x)).argmax(1).numpy()
print(f"the model of the file: {np.mean(found == data.test_y):.1%}")

# Another task begins with these weights; the last layer is new where the number of classes differs.
more = lightdp.Config(clients=10, colluders=2, stragglers=2, rounds=5, epsilon=8.0, start=str(folder / "model.pt"))
start = lightdp.Run(more, folder / "next.jsonl", dataset=data, module=Corners()).finish().started.start or {}
print(f"the next run starts from a file with SHA-256 {start['digest'][:12]}, new layers: {start['new'] or 'none'}")
