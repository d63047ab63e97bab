"""`python -m pinlater`: the command `pinlater` where its script is not on PATH."""

import sys

from pinlater.cli import main

if __name__ == "__main__":
    sys.exit(main())
