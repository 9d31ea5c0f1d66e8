"""`Client` and `Server` as state machines without input or output: bytes in, bytes out.

One run, from both sides:

    clients                                        server
    Client.enrol() ------------------ ENROL -----> Server.enrol(message)
    Client.join(message) <----------- ROSTER ----- Server.roster(name)
    each round:
    Client.begin(message) <---------- ANNOUNCE --- Server.announce()
      .upload(update) --------------- UPLOAD ----> Server.receive(message)
                                                   Server.close() -> Aggregate

>>> import lightdp, numpy
>>> plan = lightdp.plan(clients=3, colluders=1, stragglers=1, rounds=4, epsilon=8, delta=1e-5, unit="client")
>>> server = Server(plan, length=6, run=b"example run 0001")
>>> clients = [Client.new(plan, length=6, run=b"example run 0001", name=name) for name in ("ann", "bob", "cem")]
>>> for client in clients:
...     _ = server.enrol(client.enrol())
>>> for client in clients:
...     client.join(server.roster(client.name))
>>> start = server.announce()
>>> for client in clients[:2]:                                           # the third straggles
...     _ = server.receive(client.begin(start).upload(numpy.zeros(6)))
>>> server.close().used
ClientSet.of(3, [0, 1])

An announcement starts a round and says who was used in those before. A round that `binds`, as with drawn masks, is
bound to the model by `ClientRound.bind` before it is answered. Everything else (networks, files of models,
training) moves these bytes.
"""

from lightdp.protocol.client import Client
from lightdp.protocol.client_round import ClientRound
from lightdp.protocol.server import Aggregate, Server
from lightdp.protocol.state import ClientState
from lightdp.protocol.store import File, Store

__all__ = ["Aggregate", "Client", "ClientRound", "ClientState", "File", "Server", "Store"]
