"""Checkpoints in the MindSpore Transformers layout: committed atomically, verified, readable at any world size.

The door is `elastic.checkpoint.manager.CheckpointManager`. Names, policy and root identity import without torch.

    layout, manifest, metadata, policy    pure: names and texts, decisions with reasons
    storage, seams                        what is given from outside: a file system, ranks, a committer
    root                                  which run a save_path belongs to
    values, modules, optimizers, rng, state, shards    objects <-> named tensors <-> files
    commit                                the order of a save, on one screen
    survey, restoring, reading, reader    what is there, what to try, verified bytes, all ranks together
    keeping, manager                      making room; the door
"""
