"""`python -m pinlater`: the command line without its script on PATH.

Promises to be the command `pinlater`, nothing more. Risks nothing of its own.
"""

import sys

from pinlater.cli import main

if __name__ == "__main__":
    sys.exit(main())
