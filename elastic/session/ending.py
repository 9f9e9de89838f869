"""How a worker ends: the last word to its agent, one message for people, and the right exit code."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
import traceback
from typing import NoReturn

from elastic.distributed.group import Collectives
from elastic.errors import ElasticError, ExitCode, Lack
from elastic.link import Failure, Link

logger = logging.getLogger(__name__)


def end_worker(error: BaseException | None, *, link: Link, group: Collectives, step: int) -> None:
    """Tell the agent why, hang up, and turn an error of ours into its exit code.

    A user's exception is left to be raised on, traceback and all. The group is left in peace after an error: its
    peers are gone or about to go, and taking it down in order would wait for them. Where an agent stands ready to
    start this worker again the process ends at once, after Python's own exit handlers: tearing down torch costs half
    a second and crashes when it meets the threads of a broken group.

    Raises:
        SystemExit: for an ElasticError, with the code that errors.py documents.
    """
    if error is None:
        # Said before the group is taken down, in which torch may crash (its threads outlive their peers' ends).
        link.send_failure(Failure(exit_code=int(ExitCode.DONE), step=step, signature="", text="finished"))
        group.leave()
        link.close()
        return
    if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        link.close()
        return
    link.send_failure(describe(error, step=step))
    present = link.present
    link.close()
    if isinstance(error, ElasticError):
        if error.exit_code not in (ExitCode.PEER_LOST, ExitCode.REGROUP):
            logger.error("%s", error)
        elif present:
            exit_now(int(error.exit_code))
        raise SystemExit(int(error.exit_code)) from error


def exit_now(code: int) -> NoReturn:
    """End this process after Python's own exit handlers, without tearing down torch."""
    # What users registered with atexit still runs; the agent bounds how long.
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def describe(error: BaseException, *, step: int) -> Failure:
    """An error as its agent and the others shall see it.

    The signature is made of the type and the place that raised, not of the message, which may hold numbers that
    change from one attempt to the next.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    signature = hashlib.sha256(f"{type(error).__name__} at {place}".encode()).hexdigest()[:16]
    ours = isinstance(error, ElasticError)
    text = str(error) if ours else "".join(traceback.format_exception(error))
    exit_code = int(error.exit_code) if isinstance(error, ElasticError) else int(ExitCode.FAILED)
    node_local, lacks = (error.node_local, error.lacks) if isinstance(error, ElasticError) else (False, Lack.NOTHING)
    return Failure(exit_code=exit_code, step=step, signature=signature, text=text, node_local=node_local, lacks=lacks)
