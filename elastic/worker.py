"""What torchrun starts: `torchrun … --rdzv_backend=etcd elastic/worker.py`; with plain python, a world of one."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # As a script, this directory would be first on the path and hide the standard library behind our modules.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> None:
    """Read the settings, load the job, run it."""
    from elastic.lifetime import die_with_agent

    die_with_agent(os.environ)
    from elastic.launch.worker_main import run_worker

    run_worker(sys.argv[1:], environ=os.environ)


if __name__ == "__main__":
    main()
