"""Makes `python -m elastic` the command line."""

import sys

from elastic.cli import main

if __name__ == "__main__":
    sys.exit(main())
