"""The evidence beside `lightdp`: rival schemes played for real, their comparison, and the paper run again.

`lightdp` never imports this package. Its commands (`lightdp compare`, `lightdp reproduce`, `lightdp bench`), its
schemes and the channel on which `lightdp run` trains with them come in through entry points.

- `registry`: the facts of each scheme; `schemes`: each of them, message by message on a network with faults.
- `compare`, `scaling`: all schemes on the same updates, faults and privacy target.
- `channel`: rounds of a simulated training, as a scheme would have them.
- `reproduce`, `results`, `tables`, `differences`, `sensitivity`, `page`: the paper's tables and figures.
- `charts`, `cli`, `bench`: pictures, commands, and how fast masks are made.
"""
