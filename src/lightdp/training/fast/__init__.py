"""Fast local work: gradients of every record in one pass, and local SGD of many clients in one CUDA graph.

`lightdp.training.gradients` and `lightdp.training.sgd` decide what is computed; this package computes it faster for
models made of layers that it knows. Everything here also runs on a CPU, where the tests compare it with plain torch.
On CUDA with triton the inner loops are kernels of our own, in bfloat16 with sums in float32.

| name | use |
| --- | --- |
| `knows(model)` | whether `Records` and `train_lanes` can take the model; otherwise use `by_vmap` and a plain loop |
| `Records(model, half=...).gradients(x, y)` | the gradient of each record, one matrix for each parameter |
| `Records(...).terms(x, y)` | likewise for clipped sums, which `finish(sums)` completes; and squared norms |
| `outputs(model, x)` | what layers make of each record, whatever stands beside it |
| `by_vmap(model, x, y)` | the same for any model, by `torch.func.vmap`, slower |
| `reorder(model, rows)` | from the order of kernels used here back to that of `model.parameters()` |
| `dense(x, weight, bias)` | a linear layer whose rows do not depend on their places |
| `with_dense(model)` | the same model, in place, with such layers and frozen parameters |
| `squares(rows)` | squared norms in float64, accurate enough to clip by |
| `train_lanes(model, x, y, plans, lr, dtype=...)` | local SGD of many clients whose batches run side by side |
| `with_norms(model)` | the same model, in place, with norms that are fast on CUDA, for ordinary training |
| `mean_loss(model, parameters, x, y, rows)` | the loss that `train_lanes` descends |

Nothing here clips or adds noise: `gradients.clipped_sums` gives the guarantee.

>>> import torch
>>> from lightdp.training import fast
>>> layer = torch.nn.Linear(2, 3)
>>> records = fast.Records(layer, half=False)
>>> [tuple(g.shape) for g in records.gradients(torch.ones(5, 1, 2), torch.zeros(5, dtype=torch.int64))]
[(5, 6), (5, 3)]
"""

from lightdp.training.fast._lanes import mean_loss, train_lanes
from lightdp.training.fast._layers import dense, with_dense, with_norms
from lightdp.training.fast._layout import reorder
from lightdp.training.fast._records import Records, by_vmap, knows, outputs, squares

__all__ = [
    "Records",
    "by_vmap",
    "dense",
    "knows",
    "mean_loss",
    "outputs",
    "reorder",
    "squares",
    "train_lanes",
    "with_dense",
    "with_norms",
]
