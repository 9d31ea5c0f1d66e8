"""What the server does: average what the clients have trained, and measure it on its own images."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import lightdp.flower
from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the configuration says."""
    config = context.run_config
    clients, rounds = int(config["clients"]), int(config["rounds"])
    plan = lightdp.plan(
        clients=clients,
        colluders=clients // 10,
        stragglers=clients // 10,
        rounds=rounds,
        epsilon=float(config["epsilon"]),
        delta=1e-5,
        unit="client",
        clip=0.5,
        calibration="repair",
        momentum=0.0,  # FedAvg has none
    )
    strategy = lightdp.flower.LightDP(FedAvg(min_available_nodes=clients, fraction_evaluate=0.0), plan)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.model().state_dict()),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )
    last = max(result.evaluate_metrics_serverapp)
    final = dict(result.evaluate_metrics_serverapp[last]) | dict(result.train_metrics_clientapp.get(last, {}))
    print("\n".join(f"{name} {value:.4g}" for name, value in final.items()))
    if config["result"]:
        Path(str(config["result"])).write_text(json.dumps({"round": last} | final))


def evaluate(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The model's accuracy on images that no client has."""
    net = task.model()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(net, *task.test_data())})
