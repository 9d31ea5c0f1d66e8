"""A whole exchange: two clients, a third that drops out, the repair of what it left, and what it all cost.

Run: python examples/two_clients.py
"""

import numpy as np

import lightdp

LENGTH, RUN = 6, b"example run 0001"  # the run's name has 16 bytes

plan = lightdp.plan(
    clients=3, colluders=0, stragglers=1, rounds=4, epsilon=8, delta=1e-5, unit="client", calibration="repair"
)
server = lightdp.Server(plan, length=LENGTH, run=RUN)
clients = [lightdp.Client.new(plan, length=LENGTH, run=RUN, name=name) for name in ("ann", "bob", "cem")]

# Once, before training: public keys travel through the server.
for client in clients:
    server.enrol(client.enrol())
for client in clients:
    client.join(server.roster(client.name))

# Round 0: everybody answers. Round 1: cem does not, and leaves pairwise noise in the sum.
updates = {name: np.full(LENGTH, value) for name, value in (("ann", 0.1), ("bob", 0.2), ("cem", 0.3))}
model = np.zeros(LENGTH)
for present in (("ann", "bob", "cem"), ("ann", "bob")):
    start = server.announce()
    for name, client in zip(server.names, clients, strict=True):
        if name in present:
            begun = client.begin(start)
            if begun.binds:  # with drawn masks: hash the same bytes on all clients, or their noise does not cancel
                begun.bind(lightdp.digest(model.astype("<f4")))
            server.receive(begun.upload(updates[name]))  # one message of bytes
    result = server.close()
    model += result.mean()
    print(f"round {result.round}: used {len(result.used)} of 3 uploads, mean {np.round(result.mean(), 1)}")

# The closing round has no data: ann and bob take out what cem's absence left. They know all rounds before round 1; a
# client that missed some is told of them by announce(since=the first that it missed).
start = server.announce(since=1, closing=True)
for client in clients[:2]:
    server.receive(client.begin(start).upload(None))
model += server.close().mean()
print("model", np.round(model, 1), "- with only the individual noise of seven uploads left in it")
print(f"ann has spent ε = {clients[0].epsilon():.2f} of {plan.budget:g}; an upload has {plan.wire_bits} bits a value")
