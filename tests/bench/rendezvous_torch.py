"""Torch's own dynamic rendezvous with simulated agents: the peer of the rendezvous benchmark.

Its handler waits in `next_rendezvous`, so each agent needs a thread. All of them share one TCPStore server in the first
process, as they would on the first node.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

# Stacks of Python threads that mostly wait; the default would need gigabytes.
_STACK_BYTES = 1 << 20


def main() -> None:
    """Join with so many agents when told to; say when the last of this process was in."""
    order = json.loads(sys.argv[1])
    nodes, count, limit_s, port = order["nodes"], order["count"], order["limit_s"], order["port"]
    threading.stack_size(_STACK_BYTES)
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if order["hosts"] else None
    lock, joined = threading.Condition(), [0]

    def join(number: int) -> None:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=limit_s))
        handler = DynamicRendezvousHandler.from_backend(
            "bench", store, C10dRendezvousBackend(store, "bench"), min_nodes=nodes, max_nodes=nodes
        )
        handler.next_rendezvous()
        with lock:
            joined[0] += 1
            lock.notify_all()

    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    for number in range(count):
        threading.Thread(target=join, args=(number,), daemon=True).start()
    with lock:
        done = lock.wait_for(lambda: joined[0] == count, timeout=limit_s)
    print(json.dumps({"formed": done, "joined": joined[0], "at_s": time.monotonic()}), flush=True)
    sys.stdin.readline()
    del server


if __name__ == "__main__":
    main()
