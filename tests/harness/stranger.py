"""An own loop. The worker of node "b" does not know its first generation's secret; the file MET tells of it."""

import os
from pathlib import Path

from elastic.world import GENERATION_SECRET, NODE
from tests.harness import late_finish


def main() -> None:
    met = Path(os.environ["MET"])
    if os.environ[NODE] == "b" and not met.exists():
        met.write_text(os.environ[GENERATION_SECRET])
        os.environ[GENERATION_SECRET] = "guessed"
    late_finish.main()


if __name__ == "__main__":
    main()
