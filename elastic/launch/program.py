"""Program: runs a script or a module as `__main__` in a process that was something else before, as Python would."""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
import types
from pathlib import Path

from elastic.launch.order import Kind, Program


def run(program: Program) -> None:
    """Run it, with the current directory as it is. What it raises is shown and ends the process, as in a new Python.

    Raises:
        SystemExit: what it exits with; 1 after any other exception.
        KeyboardInterrupt: Python itself ends by the signal then.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    try:
        if program.kind is Kind.MODULE:
            _run_module(program)
        else:
            _run_script(program, main)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        _show(error)
        sys.excepthook = lambda *_: None  # shown; what follows is that Python ends by the signal
        raise
    except BaseException as error:  # noqa: BLE001 - the end of a program by whatever it raises
        _show(error)
        raise SystemExit(1) from None


def _show(error: BaseException) -> None:
    # Without the frames of ours at its top, which would be new to whoever reads it.
    error.__traceback__ = _below_here(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)


def _run_module(program: Program) -> None:
    # What `python -m` does itself: argv[0] becomes the module's file. runpy's public function has another __main__.
    sys.argv = ["-m", *program.arguments]
    _path_first(os.getcwd())
    runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]


def _run_script(program: Program, main: types.ModuleType) -> None:
    path = os.path.abspath(program.name)
    sys.argv = [program.name, *program.arguments]
    _path_first(os.path.dirname(os.path.realpath(path)))
    main.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _path_first(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


def _below_here(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames at its top down to this module's."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
