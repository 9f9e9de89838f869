"""Proving: the members of a group show each other that they belong to its generation, before anything is passed on.

Each draws a number that was never used before, and signs its rank and everybody's numbers with the generation's secret
(HMAC-SHA256, RFC 2104), which only who may read the job's keys in etcd can have. A recorded answer fits no other
numbers, and another rank's answer no other rank.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import torch

from elastic.distributed.group import Collectives

NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size


def proof(secret: str, *, generation: int, rank: int, nonces: bytes) -> bytes:
    """What a member of this rank answers to everybody's numbers, in the order of ranks."""
    return hmac.digest(secret.encode(), f"{generation}.{rank}.".encode() + nonces, "sha256")


def strangers(group: Collectives, *, secret: str, generation: int, draw: Callable[[int], bytes]) -> tuple[int, ...]:
    """Show that this rank belongs to the generation; the ranks that do not. Every rank calls it first of all.

    Args:
        secret: the generation's; "": there is none, and nothing is shown.
        draw: so many random bytes.

    Raises:
        PeerLost: a peer is gone.
    """
    if not secret or group.size == 1:
        return ()
    nonces = _all_of(group, draw(NONCE_BYTES))
    answers = _all_of(group, proof(secret, generation=generation, rank=group.rank, nonces=nonces))
    return tuple(
        rank
        for rank in range(group.size)
        if not hmac.compare_digest(
            answers[rank * PROOF_BYTES : (rank + 1) * PROOF_BYTES],
            proof(secret, generation=generation, rank=rank, nonces=nonces),
        )
    )


def _all_of(group: Collectives, own: bytes) -> bytes:
    """Equally long pieces of all ranks, in their order."""
    whole = torch.empty(group.size * len(own), dtype=torch.uint8)
    group.start_collect(whole, torch.frombuffer(bytearray(own), dtype=torch.uint8)).wait()
    return whole.numpy().tobytes()
