"""What a training has really cost each client (R1), (R2).

`Odometer` is a ledger of what each round cost each client, and one of two composers that turn costs into ε: sums of
squared μ where whole batches are used, privacy loss distributions where batches are sampled. The cost of a round is
its squared μ in units of (Δ/σ)², σ = `plan.scale`: the individual noise with repair, otherwise σ_eff.

>>> import lightdp
>>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=20, epsilon=3, delta=1e-5)
>>> odometer = Odometer(plan)
>>> odometer.admit()                                         # raises BudgetError if the round might exceed the budget
>>> odometer.record(used=range(45), late=[45, 46])           # five clients straggled, two uploads were seen too late
>>> odometer.max_epsilon() < plan.budget
True
"""

from lightdp.accountant._composers import GaussianComposer, SampledComposer
from lightdp.accountant._ledger import Ledger
from lightdp.accountant._odometer import Odometer

__all__ = ["GaussianComposer", "Ledger", "Odometer", "SampledComposer"]
