"""`python -m exocli` is `exo`, where the script is not on PATH."""

import sys

from exocli.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
