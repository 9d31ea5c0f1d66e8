"""A start from noise: weights that were trained on images of random processes, and on no natural image.

Private training reaches more from a good start. Public photographs would give one, but they must be found, may be
licensed, and may hold what the private data hold. Images that random numbers make hold nothing of anybody, and a
network that learns to tell them apart has filters and features that photographs need, too.

| module | what it does |
| --- | --- |
| `processes` | the images: dead leaves of textured shapes, untrained generators with oriented kernels, coloured noise |
| `augment` | two views of an image that should get similar features |
| `recipe`, `pretrain` | the contrastive training, from its settings to weights |
| `start` | the file of the weights: half precision, with the command that made it |
| `probe` | how good a start is: a linear model on its features |
| `finetune` | private training from a start |

`lightdp prior make` writes a start, `lightdp prior train` trains privately from it. `python -m lightdp_lab.prior` has
the same commands without typer and rich.
"""
