"""Health: whether a machine is fit for a job. Each check is a pure judgement over one measured fact, with its remedy.

Limits come from what breaks: a lease of 5 s is renewed several times within it, loaders share batches in /dev/shm,
Inductor and others ask for the user's name, a save waits for its fsyncs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

_SLOW_STORE_S = 0.1
_TOO_SLOW_STORE_S = 1.0
_SKEW_S = 2.0
"""etcd tells its time in whole seconds, so that less than this cannot be told from none."""
_SMALL_SHM_BYTES = 512 << 20
_FEW_FILES = 4096
_FEW_PROCESSES = 1024
_SLOW_FSYNC_S = 0.1
_SLOW_WRITE = 20e6
_LITTLE_ROOM = 0.05


class Level(enum.StrEnum):
    """How bad it is."""

    GOOD = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "FAILURE"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found, and what to do about it where it is not good."""

    check: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class StoreFact:
    """What asking etcd several times gave. `problem`: the error's words, where it gave nothing."""

    endpoints: Sequence[str]
    secure: bool
    latencies_s: Sequence[float] = ()
    version: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class DiskFact:
    """What trying a save_path gave."""

    path: str
    problem: str = ""
    fsyncs_s: Sequence[float] = ()
    write_bytes_per_s: float = 0.0
    rename_refuses: bool = False
    """Whether publishing a directory over another one was refused and both stayed."""
    free_bytes: int = 0
    total_bytes: int = 0


def judge_store(fact: StoreFact) -> Finding:
    """Reachable, and fast enough for its leases."""
    where = ", ".join(fact.endpoints)
    if fact.problem:
        remedy = "start etcd there, or name it with --rdzv-endpoint; TLS and users: --rdzv-conf"
        return Finding(check="etcd", level=Level.FAILURE, found=fact.problem, remedy=remedy)
    middle_s, slowest_s = median(fact.latencies_s), max(fact.latencies_s)
    found = f"{where} answers in {middle_s * 1000:.1f} ms, the slowest {slowest_s * 1000:.1f} ms"
    if fact.version:
        found += f" (etcd {fact.version})"
    if slowest_s > _TOO_SLOW_STORE_S:
        remedy = "leases may run out: give etcd a disk of its own, or raise rendezvous.ttl_s"
        return Finding(check="etcd", level=Level.FAILURE, found=found, remedy=remedy)
    if middle_s > _SLOW_STORE_S:
        remedy = "recoveries wait for it several times: give etcd a faster disk or a nearer place"
        return Finding(check="etcd", level=Level.WARNING, found=found, remedy=remedy)
    return Finding(check="etcd", level=Level.GOOD, found=found)


def judge_secrecy(fact: StoreFact) -> Finding:
    """Whether what is said to etcd can be read and forged on the way."""
    if fact.secure:
        return Finding(check="etcd TLS", level=Level.GOOD, found="https, its certificate checked")
    local = all(endpoint.startswith(("127.", "localhost:", "[::1]")) for endpoint in fact.endpoints)
    found = "plain http" + (", on this machine" if local else " over the network: who reaches etcd can end the job")
    if local:
        return Finding(check="etcd TLS", level=Level.GOOD, found=found)
    remedy = "--rdzv-endpoint https://... with cacert in --rdzv-conf, or a network that only the job's nodes reach"
    return Finding(check="etcd TLS", level=Level.WARNING, found=found, remedy=remedy)


def judge_clock(offset_s: float | None) -> Finding:
    """This clock against etcd's. Nothing is decided by it, but records of several nodes are put in its order."""
    if offset_s is None:
        return Finding(check="clock", level=Level.SKIPPED, found="etcd did not tell its time")
    if abs(offset_s) <= _SKEW_S:
        return Finding(check="clock", level=Level.GOOD, found=f"within {_SKEW_S:g} s of etcd's")
    found = f"{abs(offset_s):.0f} s {'behind' if offset_s > 0 else 'ahead of'} etcd's"
    remedy = "run a time service (chrony, ntp): events and checkpoint ages of several nodes will be out of order"
    return Finding(check="clock", level=Level.WARNING, found=found, remedy=remedy)


def judge_shared_memory(total_bytes: int | None, *, free_bytes: int = 0) -> Finding:
    """/dev/shm, in which loader processes hand over batches. Copies of the state do not lie there."""
    if total_bytes is None:
        remedy = "mount a tmpfs there: loaders with num_workers need it"
        return Finding(check="/dev/shm", level=Level.FAILURE, found="there is none", remedy=remedy)
    found = f"{total_bytes / 2**20:.0f} MiB, {free_bytes / 2**20:.0f} free"
    if min(total_bytes, free_bytes) >= _SMALL_SHM_BYTES:
        return Finding(check="/dev/shm", level=Level.GOOD, found=found)
    remedy = "docker: --shm-size=2g; Kubernetes: an emptyDir with medium: Memory; or data.num_workers: 0"
    return Finding(check="/dev/shm", level=Level.WARNING, found=found, remedy=remedy)


def judge_limit(name: str, soft: int, *, infinity: int) -> Finding:
    """A ulimit: `files` or `processes`."""
    least, option = {"files": (_FEW_FILES, "-n"), "processes": (_FEW_PROCESSES, "-u")}[name]
    found = "no limit" if soft == infinity else str(soft)
    if soft == infinity or soft >= least:
        return Finding(check=f"ulimit {name}", level=Level.GOOD, found=found)
    remedy = f"ulimit {option} {least} (or LimitNOFILE, TasksMax, pids limit) where torchrun is started"
    return Finding(check=f"ulimit {name}", level=Level.WARNING, found=found, remedy=remedy)


def judge_user(uid: int, name: str | None) -> Finding:
    """Libraries ask for the user's name and fail where there is none."""
    if name is not None:
        return Finding(check="user", level=Level.GOOD, found=f"{name} (uid {uid})")
    remedy = "set USER and HOME, and TORCHINDUCTOR_CACHE_DIR if the job compiles; or add the uid to /etc/passwd"
    return Finding(check="user", level=Level.WARNING, found=f"uid {uid} has no name", remedy=remedy)


def judge_port(host: str, *, wanted: int, free: int | None) -> Finding:
    """The exporter's port, or the next free one of the hundred after it."""
    if free is None:
        remedy = "set metrics.port to another one, or end what holds them"
        found = f"none of {wanted}..{wanted + 100} is free on {host}"
        return Finding(check="exporter port", level=Level.FAILURE, found=found, remedy=remedy)
    if free == wanted:
        return Finding(check="exporter port", level=Level.GOOD, found=f"{host}:{wanted} is free")
    found = f"{wanted} is taken; an agent would take {free}"
    return Finding(check="exporter port", level=Level.GOOD, found=found)


def judge_disk(fact: DiskFact) -> list[Finding]:
    """Whether saves can be made there, whether they are safe, and how fast."""
    if fact.problem:
        remedy = "checkpoint.save_path must be a directory that this user may write to"
        return [Finding(check="save_path", level=Level.FAILURE, found=f"{fact.path}: {fact.problem}", remedy=remedy)]
    free = fact.free_bytes / fact.total_bytes if fact.total_bytes else 1.0
    little = free < _LITTLE_ROOM
    room = f"{fact.free_bytes / 1e9:.1f} GB free of {fact.total_bytes / 1e9:.1f} GB"
    findings = [
        Finding(
            check="save_path",
            level=Level.WARNING if little else Level.GOOD,
            found=f"{fact.path} can be written, {room}",
            remedy="make room: a save that finds none fails, and the last good one stays" if little else "",
        ),
        _judge_rename(fact),
    ]
    middle_s = median(fact.fsyncs_s)
    slow = middle_s > _SLOW_FSYNC_S or fact.write_bytes_per_s < _SLOW_WRITE
    remedy = "checkpoint.save_mode: async keeps training from waiting; a faster disk makes saves durable sooner"
    findings.append(
        Finding(
            check="fsync",
            level=Level.WARNING if slow else Level.GOOD,
            found=f"{middle_s * 1000:.1f} ms, {fact.write_bytes_per_s / 1e6:.0f} MB/s made durable",
            remedy=remedy if slow else "",
        )
    )
    return findings


def _judge_rename(fact: DiskFact) -> Finding:
    if fact.rename_refuses:
        return Finding(check="rename", level=Level.GOOD, found="a directory is never put over another")
    remedy = "this file system is not safe for checkpoints: use another, or an object store"
    found = "a directory was put over another one that held something"
    return Finding(check="rename", level=Level.FAILURE, found=found, remedy=remedy)


def judge_package(name: str, *, found: str | None, least: str) -> Finding:
    """An installed distribution against the least version that this one asks for."""
    check = f"package {name}"
    remedy = f"pip install '{name}>={least}'"
    if found is None:
        return Finding(check=check, level=Level.FAILURE, found="not installed", remedy=remedy)
    if _numbers(found) < _numbers(least):
        return Finding(check=check, level=Level.FAILURE, found=f"{found}, at least {least} is needed", remedy=remedy)
    return Finding(check=check, level=Level.GOOD, found=found)


def judge_rival(found: str | None) -> Finding | None:
    """The original etcd3 brings a module of the same name that fails to import; None where it is not there."""
    if found is None:
        return None
    remedy = "pip uninstall etcd3; pip install --force-reinstall cslab-etcd3"
    told = f"version {found} is installed beside cslab-etcd3, whose module it overwrites"
    return Finding(check="package etcd3", level=Level.FAILURE, found=told, remedy=remedy)


def judge_plugin(names: Sequence[str]) -> Finding:
    """Whether torchrun will find `--rdzv_backend=etcd` to be ours. `names`: values of torchrun.handlers."""
    if any(name.startswith("elastic.") for name in names):
        return Finding(check="plug-in", level=Level.GOOD, found="torchrun knows this package")
    remedy = "pip install this package (an editable install does); a checkout on PYTHONPATH alone is not enough"
    return Finding(check="plug-in", level=Level.FAILURE, found="no torchrun.handlers entry of it", remedy=remedy)


def judge_likeness(fingerprints: Mapping[str, str], *, here: str) -> Finding:
    """Versions of the nodes of a job, as their agents told, and this machine's."""
    others = {node: told for node, told in fingerprints.items() if told != here}
    if not fingerprints:
        return Finding(check="versions", level=Level.SKIPPED, found="no agent of a job is there to compare with")
    if not others:
        return Finding(check="versions", level=Level.GOOD, found=f"alike on {len(fingerprints)} nodes: {here}")
    told = "; ".join(f"{node}: {each}" for node, each in sorted(others.items()))
    return Finding(
        check="versions",
        level=Level.WARNING,
        found=f"here {here}; {told}",
        remedy="install the same versions everywhere: numbers may differ, and records of a later one may not be read",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13, 0); a part that is no number ends it."""
    parts = []
    for part in version.split("+")[0].split("."):
        if not part.isdecimal():
            break
        parts.append(int(part))
    return tuple(parts)
