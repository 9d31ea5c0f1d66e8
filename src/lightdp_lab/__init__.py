"""The evidence beside `lightdp`: rival schemes played for real, their comparison, and the paper run again.

`lightdp` never imports this package. Its commands (`lightdp compare`, `lightdp reproduce`, `lightdp bench`) and its
schemes come in through entry points.
"""
