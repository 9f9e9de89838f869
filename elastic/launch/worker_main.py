"""A worker from its command line to the job's loop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

import torch

from elastic.config.load import resolve
from elastic.distributed.group import Alone
from elastic.job import load_job
from elastic.loop import run_job
from elastic.rendezvous.speech import agree
from elastic.session.ending import end_worker, exit_now
from elastic.session.place import connect
from elastic.world import World


def run_worker(argv: Sequence[str], *, environ: Mapping[str, str]) -> None:
    """Run the job that the settings name.

    Raises:
        SystemExit: with a documented exit code, unless the run reaches its end.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("elastic").setLevel(logging.INFO)
    sys.path.insert(1, os.getcwd())  # where a user's own "module:job" lies
    try:
        agree(environ, torch_version=torch.__version__)
        settings = resolve(argv, environ=environ).settings
        job = load_job(settings.job.target, settings)
    except BaseException as error:
        # Not to handle it: an agent must hear of a worker that ends before it had a session.
        end_worker(error, link=connect(World.from_environ(environ)), group=Alone(), step=0)
        raise
    run_job(job, settings)
    if World.from_environ(environ).distributed:
        # gloo's threads abort the interpreter's end now and then, and a finished worker would count as failed.
        exit_now(0)
