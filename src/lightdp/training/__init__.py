"""Train a model over many clients: data, partitions, models, local steps, stragglers, the simulator."""
