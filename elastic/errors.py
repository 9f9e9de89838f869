"""Every error that the product raises, and the exit code each ends the process with.

    ElasticError                 70  something is wrong inside; a message says what and what to do
    ├── UsageError               64  the user must change something; retrying cannot help
    │   ├── ConfigError          64  a configuration: every problem found, each with its place
    │   ├── RunMismatch          64  the save path belongs to another run
    │   ├── DataError            64  data that is empty, missing, changed or not what it claims to be
    │   ├── LossNotFinite        64  the loss is no number, and the policy is to stop
    │   └── NumericsDiffer       64  numerics: exact, and this node would compute other bits: the others do without it
    ├── StoreError               75  the key-value store (etcd)
    │   ├── StoreUnavailable     75  not reachable within the limit; a later start may succeed
    │   ├── StoreRefused         64  it answered and said no: credentials, permission
    │   └── VersionsDiffer       64  the run's agents speak another protocol or have another torch
    ├── CheckpointError          70  saving or restoring
    │   ├── CheckpointDamaged    70  a file that is not what its manifest says
    │   └── NothingToRestore     64  load_path holds nothing that can be restored
    │       └── StateElsewhere   64  it was committed, and no node that is here holds it: others may
    │           └── NewestElsewhere  64  what was committed last; older state is here
    ├── PeerLost                110  a collective broke: the agent regroups, nobody's fault here
    ├── Regroup                 111  the membership changes; state is durable, the agent starts us again
    │   └── PlaceUnknown        111  a job that is built ahead asked for its rank: the agent starts us once there is one
    ├── Fenced                   76  this process belongs to a generation that is over
    ├── Preempted                75  asked to leave; state is durable, please requeue
    └── NoProgress               77  the same step failed too often

Nothing else may escape from the package on purpose.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """What a process of ours may exit with. The first seven are for users and schedulers."""

    DONE = 0
    FAILED = 1
    USAGE = 64
    INTERNAL = 70
    PREEMPTED = 75
    FENCED = 76
    NO_PROGRESS = 77
    # Between a worker and its agent only; torchrun itself never exits with these.
    PEER_LOST = 110
    REGROUP = 111


class Lack(enum.StrEnum):
    """What nodes that are not here may have and those that are here do not: then it is worth waiting for them."""

    NOTHING = ""
    NEWEST = "newest"
    """What was committed last; older state is here to go back to."""
    ALL = "all"
    """All of what was committed."""


class ElasticError(Exception):
    """Base of the tree."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL
    node_local: ClassVar[bool] = False
    """Whether this node is to blame, so that the others may do without it."""
    lacks: ClassVar[Lack] = Lack.NOTHING


class UsageError(ElasticError):
    """The user must change something: a path, an option, a permission."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration, and where: `file:line`, `env NAME` or `--flag`."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ConfigError(UsageError):
    """All problems of a configuration at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class RunMismatch(UsageError):
    """The save path belongs to another run than the one being started."""


class DataError(UsageError):
    """A data set that is empty, missing, changed or malformed."""


class LossNotFinite(UsageError):
    """A step's loss is no finite number, and training.on_nan says to stop."""


class NumericsDiffer(UsageError):
    """This node would not compute the same bits as the others, and the run wants that."""

    node_local = True


class StoreError(ElasticError):
    """The key-value store did not do what was asked."""

    exit_code = ExitCode.PREEMPTED


class StoreUnavailable(StoreError):
    """No endpoint answered within the limit."""


class StoreRefused(StoreError):
    """The store answered and refused: wrong user, wrong password, no permission."""

    exit_code = ExitCode.USAGE


class VersionsDiffer(StoreError):
    """Agents of another version are at work in this run, and this one would not understand them."""

    exit_code = ExitCode.USAGE
    node_local = True


class CheckpointError(ElasticError):
    """Saving or restoring failed."""


class CheckpointDamaged(CheckpointError):
    """A file is missing, short, altered, or not what its manifest says."""


class NothingToRestore(CheckpointError):
    """A load path that holds nothing to restore. Never answered with random weights."""

    exit_code = ExitCode.USAGE


class StateElsewhere(NothingToRestore):
    """This job has committed state, and none of the nodes that are here holds any."""

    lacks = Lack.ALL


class NewestElsewhere(StateElsewhere):
    """None of the nodes that are here holds what this job committed last. Older state is here."""

    lacks = Lack.NEWEST


class PeerLost(ElasticError):
    """A collective broke because a peer went away."""

    exit_code = ExitCode.PEER_LOST


class Regroup(ElasticError):
    """All ranks agreed to end at this step boundary so that the membership can change."""

    exit_code = ExitCode.REGROUP


class PlaceUnknown(Regroup):
    """What only an agreed world can tell was asked for before there is one."""


class Fenced(ElasticError):
    """A newer generation exists: what this process knows is stale."""

    exit_code = ExitCode.FENCED


class Preempted(ElasticError):
    """Asked to leave. What had been committed is durable."""

    exit_code = ExitCode.PREEMPTED


class NoProgress(ElasticError):
    """The same step failed too many times."""

    exit_code = ExitCode.NO_PROGRESS
