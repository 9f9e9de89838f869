"""Stock's side of the recovery benchmark: a plain DDP loop with a checkpoint, as the public documents teach it.

Appends one JSON line a step to $STEP_LOG. Uses torch.save as such scripts do; it runs in an environment of its own.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from small_lm import BATCH, Bytes, SmallLM, losses

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(SmallLM())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoint, step = Path(os.environ["CHECKPOINT"]), 0
if checkpoint.exists():
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
data = Bytes()
log = open(os.environ["STEP_LOG"], "a", buffering=1)  # noqa: SIM115  open for the life of the process
while step < int(os.environ["STEPS"]):
    first = (step * world + rank) * BATCH
    loss = losses(model, torch.stack([data[first + n] for n in range(BATCH)])).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    log.write(json.dumps({"t": time.time(), "step": step, "world": world, "pid": os.getpid()}) + "\n")
    if rank == 0 and step % 10 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint.with_suffix(".tmp"))
        os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
dist.destroy_process_group()
