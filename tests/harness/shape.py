"""The rules of the code's shape as functions of a source tree: each returns what breaks it, as sentences."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYERS = (  # Lowest first. A module may import its own layer and every one above it in this list.
    {
        "errors",
        "world",
        "clock",
        "events",
        "failpoint",
        "config",
        "plan",
        "job",
        "limited",
        "link",
        "lifetime",
        "lease",
        "activity",
        "stacks",
    },
    {"checkpoint", "data", "rendezvous", "metrics", "tracking"},
    {"distributed", "session"},
    {"loop", "launch", "history", "observe"},
    {"worker", "cli", "local", "demo", "__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
APART = LAYERS[1]
"""None of these may import another of them: they meet in the session or the agent."""

IMPORTERS = {  # The only modules (or packages) that may import a library.
    "yaml": ("config.yaml_file",),
    "fsspec": ("checkpoint.object_fs",),
    "prometheus_client": ("metrics", "local"),
    "etcd3": ("rendezvous.etcd",),
    "grpc": ("rendezvous.etcd",),
    "textual": ("observe.top_screen",),
    "rich": ("observe.top_screen",),
    "wandb": ("tracking.wandb_run",),
    "mlflow": ("tracking.mlflow_run",),
    "tensorboard": ("tracking.tensorboard_run",),
}
DEPENDENCIES = (
    "torch",
    "torchdata",
    "safetensors",
    "numpy",
    "etcd3",
    "prometheus_client",
    "yaml",
    "grpc",
    "google",
    "fsspec",
)
LIGHT = {  # Must load without torch. A package stands for all its modules, "" for the package `elastic` itself.
    *(
        "",
        "errors",
        "world",
        "clock",
        "events",
        "failpoint",
        "job",
        "link",
        "lease",
        "activity",
        "stacks",
        "config",
        "plan",
        "metrics",
    ),
    *("cli", "checkpoint.layout", "checkpoint.policy", "rendezvous.machine", "rendezvous.model", "rendezvous.plugin"),
    *("rendezvous.lease_keeper", "observe"),
}
MOST_LINES_OF_A_FILE = 350
MOST_LINES_OF_A_FUNCTION = 60

CLOCK = "elastic/clock.py"
UNPICKLER = "elastic/checkpoint/torch_file.py"
"""May read another system's pickle, weights only; runs in a process of its own and is imported by nobody."""
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "torch.save", "torch.load"}
OBJECT_COLLECTIVES = {
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import of another module, both as dotted names."""

    importer: str
    imported: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file. `name` is the dotted name below the package, "" for the package itself."""

    path: Path
    shown: str
    name: str
    tree: ast.Module
    lines: int


def sources(root: Path, *folders: str) -> Iterator[Source]:
    """Every Python file of some folders of a tree."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            text = path.read_text()
            yield Source(
                path=path,
                shown=str(path.relative_to(root)),
                name=".".join(parts if parts[-1] != "__init__" else parts[:-1]),
                tree=ast.parse(text, filename=str(path)),
                lines=text.count("\n"),
            )


def imports(source: Source) -> Iterator[Import]:
    """All imports of a module, those inside functions and for typing included, as absolute names."""
    package = ["elastic", *source.name.split(".")] if source.name else ["elastic"]
    if source.path.stem != "__init__":
        package = package[:-1]
    for node in ast.walk(source.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        for name in names:
            yield Import(importer=source.name, imported=name, line=getattr(node, "lineno", 0))


def _own(source: Source) -> Iterator[tuple[str, int]]:
    """Imports of the package itself, as names below it."""
    for found in imports(source):
        if found.imported.startswith("elastic."):
            yield found.imported.removeprefix("elastic."), found.line


def layering(root: Path) -> list[str]:
    """Imports that point up, or from one mechanism to another; modules that no layer names."""
    found = []
    for source in sources(root, "elastic"):
        here = source.name.split(".")[0]
        if not here:
            continue  # The package itself only lists its public names, loaded on first use.
        if here not in LEVEL:
            found.append(f"{source.shown}: no layer names {here!r}; put it into one in tests/harness/shape.py")
            continue
        for name, line in _own(source):
            there = name.split(".")[0]
            if there != here and there in LEVEL and (LEVEL[there] > LEVEL[here] or {here, there} <= APART):
                found.append(f"{source.shown}:{line}: {here} may not import {there}")
    return found


def libraries(root: Path) -> list[str]:
    """Imports of a library outside of the one place that may have it, and of any library at the lowest layer."""
    found = []
    for source in sources(root, "elastic"):
        here = source.name.split(".")[0]
        for one in imports(source):
            library = one.imported.split(".")[0]
            allowed = IMPORTERS.get(library)
            if allowed is not None and not any(source.name.startswith(place) for place in allowed):
                found.append(f"{source.shown}:{one.line}: only {', '.join(allowed)} may import {library}")
            elif here in LAYERS[0] and library in DEPENDENCIES and allowed is None and here != "job":
                found.append(f"{source.shown}:{one.line}: {here} may import the standard library only, not {library}")
    return found


def cycles(root: Path) -> list[str]:
    """Modules that import each other in a circle."""
    modules = {source.name for source in sources(root, "elastic")}
    graph: dict[str, set[str]] = {}
    for source in sources(root, "elastic"):
        if not source.name:
            continue
        targets = {name if name in modules else name.rpartition(".")[0] for name, _ in _own(source)}
        graph[source.name] = {target for target in targets if target in modules and target != source.name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def hiding(root: Path) -> list[str]:
    """Modules directly in elastic/ with a library's name: torchrun puts elastic/ first on the module path."""
    taken = sys.stdlib_module_names | set(DEPENDENCIES)
    names = {path.stem for path in (root / "elastic").iterdir()} - {"__main__"}
    return [f"elastic/{name} hides the library {name}" for name in sorted(names & taken)]


def sizes(root: Path, *folders: str) -> list[str]:
    """Files and functions that are too long."""
    found = []
    for source in sources(root, *folders):
        if source.lines > MOST_LINES_OF_A_FILE:
            found.append(f"{source.shown}: {source.lines} lines, the most is {MOST_LINES_OF_A_FILE}")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    found.append(
                        f"{source.shown}:{node.lineno}: {node.name} has {lines} lines,"
                        f" the most is {MOST_LINES_OF_A_FUNCTION}"
                    )
    return found


def forbidden(root: Path, *folders: str) -> list[str]:
    """Uses of the machine's clock outside of elastic/clock.py, and of anything that pickles."""
    found = []
    for source in sources(root, *folders):
        for name, line in _names(source.tree):
            if name in ("time.sleep", "time.time") and source.shown != CLOCK:
                found.append(f"{source.shown}:{line}: {name}; take an elastic.clock.Clock as an argument")
            elif name == "torch.load" and source.shown == UNPICKLER:
                continue
            elif name in PICKLERS or name.split(".")[0] in PICKLERS or name.split(".")[-1] in OBJECT_COLLECTIVES:
                found.append(f"{source.shown}:{line}: {name} pickles; nothing that is read back may be a pickle")
    return list(dict.fromkeys(found))


def _names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every dotted name that a module imports or uses, with import aliases resolved."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                aliases[local] = prefix + (alias.name if alias.asname or prefix else local)
                yield prefix + alias.name, node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)) is not None:
            first, _, rest = dotted.partition(".")
            yield f"{aliases.get(first, first)}.{rest}", node.lineno


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)) is not None:
        return f"{base}.{node.attr}"
    return None


def heavy(root: Path) -> list[str]:
    """Light modules that load torch, found by loading them in a process of their own."""
    names = [source.name for source in sources(root, "elastic")]
    light = [name for name in names if any(name == one or (one and name.startswith(one + ".")) for one in LIGHT)]
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(f'{name} loads torch')\n"
    )
    modules = [f"elastic.{name}".rstrip(".") for name in light if name != "__main__"]
    command = [sys.executable, "-c", script, *modules]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    return [] if done.returncode == 0 else [done.stderr.strip()]
