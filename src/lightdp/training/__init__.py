"""Train a model over many simulated clients, with the noise and the stragglers of a real deployment.

`lightdp run` and `lightdp.Run` are the way in; the modules can also be used alone:

| module | what it does |
| --- | --- |
| `config` | the settings of a run, checked |
| `data`, `partition` | records and labels, and their split over clients |
| `models`, `scattering`, `views` | models, fixed features and augmentation that treat every record apart |
| `gradients`, `sgd` | what clients compute: sums of clipped gradients, or updates by local SGD |
| `fast` | the same on CUDA, by kernels of our own |
| `clients`, `arrivals` | who holds which records; which uploads arrive in a round |
| `membership`, `roster`, `churn` | who is in which roster, what each client has spent, and who comes and goes |
| `channel`, `step`, `simulator` | from updates to the noisy sum, the server's step, and the training round by round |
| `weights`, `predict` | files of models, and a model of a table used on new rows |

torch is imported only in this package, and not by `config`, `data`, `partition`, `arrivals` and `churn`.
"""
