"""`python -m lightdp` is the command `lightdp`."""

from lightdp.cli import main

if __name__ == "__main__":
    main()
