"""`Client` and `Server` as state machines without input or output: bytes in, bytes out.

One run, from both sides:

    clients                                        server
    Client.enrol() ------------------ ENROL -----> Server.enrol(message)
    Client.join(message) <----------- ROSTER ----- Server.roster()
    each round:
    Client.begin(message) <---------- ANNOUNCE --- Server.announce()
      .upload(update) --------------- UPLOAD ----> Server.receive(message)
                                                   Server.close() -> Aggregate

An announcement starts a round and says who was used in those before. Everything else (networks, files of models,
training) moves these bytes.
"""

from lightdp.protocol.client import Client, ClientRound
from lightdp.protocol.server import Aggregate, Server
from lightdp.protocol.state import ClientState, File, Store

__all__ = ["Aggregate", "Client", "ClientRound", "ClientState", "File", "Server", "Store"]
