"""Causes: the closed sets of words that events use."""

from __future__ import annotations

import enum


class Cause(enum.StrEnum):
    """Why a generation ended or a worker was started again."""

    START = "start"
    NODE_LOST = "node_lost"
    NODE_JOINED = "node_joined"
    NODE_LEFT = "node_left"
    WORKER_EXIT = "worker_exit"
    WORKER_SIGNAL = "worker_signal"
    WORKER_HUNG = "worker_hung"
    PEER_LOST = "peer_lost"
    GROUP_FAILED = "group_failed"
    SCALED = "scaled"
    PAUSED = "paused"


class Direction(enum.StrEnum):
    """Which way a rescale went."""

    UP = "up"
    DOWN = "down"
    SAME = "same"


class Outcome(enum.StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
