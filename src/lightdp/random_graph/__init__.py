"""(S1): expanders on which clients are placed at random, for rosters that are too large for the complete graph.

Seats are pairs (a, b) of residues modulo a prime q, 1 <= a <= `height`. In each of `layers` layers, seat (a, b) has one
neighbour (c, d) for each c, with b + d = ac + l(a² + c²) in layer l. Neighbours need no graph in memory, and no
eigenvalue but the first is above `layers` times the square root of q. Clients take seats by a permutation that the hash
of the finished roster decides, so that colluders, who are fixed before, sit at random.

>>> graph = RandomGraph(clients=10_000, degree=100).placed(bytes(32))
>>> graph.neighbours_of(7).size, round(graph.second, 2)
(97, 10.15)
"""

from lightdp.random_graph._certificate import COVERED, Certificate, rounded_up
from lightdp.random_graph._draws import BAD_DRAW, DELTA_MAX, DRAWS, largest
from lightdp.random_graph._graph import RandomGraph

__all__ = ["BAD_DRAW", "COVERED", "DELTA_MAX", "DRAWS", "Certificate", "RandomGraph", "largest", "rounded_up"]
