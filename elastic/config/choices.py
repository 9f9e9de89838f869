"""Choices: the values that settings with a few named ones may have."""

from __future__ import annotations

import enum


class OnNan(enum.StrEnum):
    """What to do about a step whose loss is no finite number."""

    STOP = "stop"
    SKIP = "skip"
    ROLL_BACK = "roll_back"


class Numerics(enum.StrEnum):
    """In which order gradients are added up."""

    PLAIN = "plain"
    EXACT = "exact"


class StrategyKind(enum.StrEnum):
    """How parameters, gradients and optimizer state lie on the workers."""

    REPLICATE = "replicate"
    FSDP2 = "fsdp2"


class SaveMode(enum.StrEnum):
    """Whether training waits until a save is durable."""

    SYNC = "sync"
    ASYNC = "async"


class SaveOverlap(enum.StrEnum):
    """What a save does that is due while the one before is still being written."""

    WAIT = "wait"
    SKIP = "skip"


class PathScope(enum.StrEnum):
    """Whether save_path is one directory for all nodes, or one on each."""

    AUTO = "auto"
    SHARED = "shared"
    PRIVATE = "private"


class Notices(enum.StrEnum):
    """Which cloud is asked whether it is about to take this machine away."""

    OFF = "off"
    AWS = "aws"
    GCP = "gcp"


class SaveInterval(enum.StrEnum):
    """Whether the distance of saves stays what was set."""

    FIXED = "fixed"
    AUTO = "auto"
