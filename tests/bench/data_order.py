"""An epoch through a change of the world size, ours and others', each through the audit: `make bench-data`.

The audit is the one of `elastic audit`, fed with the items that were really read. Nothing here is timed.
"""

from __future__ import annotations

import sys

from elastic.data.audit import Account, account
from elastic.data.digest import RUN_DIGEST_START, chain, step_digest
from elastic.events import Record, Restored, RunFinished, StepCommitted
from tests.bench import data_resume
from tests.bench.data_rivals import SYSTEMS, Change, Steps
from tests.bench.table import Row, show

CHANGES = (
    Change(items=1000, batch=10, old_world=4, new_world=4, steps=10),
    Change(items=1001, batch=10, old_world=4, new_world=4, steps=10),
    Change(items=1000, batch=10, old_world=4, new_world=2, steps=10),
    Change(items=1000, batch=10, old_world=2, new_world=4, steps=15),
    Change(items=1000, batch=10, old_world=4, new_world=3, steps=10),
    Change(items=1000, batch=10, old_world=1, new_world=2, steps=30),
)


OURS, PLANTED = "this project", "this project, off by one (planted)"


RESUME_LIMIT_MS = 10.0


def main(*, items: int = 10_000_000, rounds: int = 5) -> None:
    """Print the table of the README, then each case with ours beside another system's.

    Args:
        items: of the epoch in whose middle a run goes on; resumed `rounds` times by us, once by the peer.
    """
    found = {
        name: {change: audit(read(change), items=change.items) for change in CHANGES} for name, read in SYSTEMS.items()
    }
    sys.stdout.write(markdown(found) + "\n\n")
    rows = [row for name in SYSTEMS if name != OURS for row in _rows(name, found)]
    show("data", [*rows, *_resumes(items, rounds)])


def _resumes(items: int, rounds: int) -> list[Row]:
    mine, small = (data_resume.cost(data_resume.ours(each), rounds=rounds) for each in (items, items // 100))
    peer = data_resume.cost(data_resume.torchdata(items), rounds=1, more_rounds=0)
    return [
        Row(
            case=f"go on in the middle of {items} samples, to the first batch",
            ours=mine.seconds * 1e3,
            peer=peer.seconds * 1e3,
            limit=RESUME_LIMIT_MS,
            unit="ms",
            target="<= 10 ms",
            met=mine.seconds * 1e3 <= RESUME_LIMIT_MS,
        ),
        Row(
            case="the same: memory, beside the memory for a hundredth of the samples",
            ours=mine.peak_bytes / 2**20,
            peer=peer.peak_bytes / 2**20,
            limit=small.peak_bytes / 2**20,
            unit="MiB",
            target="flat",
            met=mine.peak_bytes <= 1.2 * small.peak_bytes,
        ),
    ]


def markdown(found: dict[str, dict[Change, Account]]) -> str:
    """Used twice / never used, by system and change."""
    lines = ["| used twice / never used | " + " | ".join(str(change) for change in CHANGES) + " |"]
    lines.append("| --- |" + " --- |" * len(CHANGES))
    for name, accounts in found.items():
        cells = (f"{accounts[change].used_twice} / {accounts[change].never_used}" for change in CHANGES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _rows(name: str, found: dict[str, dict[Change, Account]]) -> list[Row]:
    rows = []
    for change, its in found[name].items():
        mine, wrong = _wrong(found[OURS][change]), _wrong(its)
        planted = name == PLANTED
        rows.append(
            Row(
                case=f"{name}: {change}",
                ours=wrong if planted else mine,
                peer=None if planted else wrong,
                limit=None,
                unit="samples",
                target="found" if planted else "0",
                met=wrong > 0 and bool(its.problems) if planted else mine == 0,
            )
        )
    return rows


def _wrong(found: Account) -> int:
    return found.used_twice + found.never_used


def audit(steps: Steps, *, items: int) -> Account:
    """The account of an epoch of `items`, its items standing for their own sample numbers."""
    records = [_record(rank, _begun()) for rank in range(max(map(len, steps)))]
    position, digest, generation = 0, RUN_DIGEST_START, 0
    for iteration, ranks in enumerate(steps, start=1):
        if iteration > 1 and len(ranks) != len(steps[iteration - 2]):
            generation += 1
            restored = _begun(iteration=iteration - 1, samples=position)
            records += [_record(rank, restored, generation) for rank in range(len(ranks))]
        used = [item for part in ranks for item in part]
        total = step_digest((item, item) for item in used)
        digest = chain(digest, total)
        for rank, part in enumerate(ranks):
            event = StepCommitted(
                iteration=iteration,
                start=position,
                stop=min(position + len(used), items),  # others fill up with items that they used before
                ranges=tuple((item, item + 1) for item in part),
                step_samples=len(used),
                step_digest=total,
                run_digest=digest,
                loss=0.0,
                world_size=len(ranks),
                seconds=0.0,
            )
            records.append(_record(rank, event, generation))
        position = min(position + len(used), items)
    records.append(_record(0, RunFinished(iteration=len(steps), consumed_samples=items), generation))
    return account(records, order=None)


def _begun(*, iteration: int = 0, samples: int = 0) -> Restored:
    return Restored(tier="disk", iteration=iteration, consumed_samples=samples, seconds=0.0, reason="simulated")


def _record(rank: int, event: Restored | StepCommitted | RunFinished, generation: int = 0) -> Record:
    return Record(time_s=0.0, node=f"n{rank}", rank=rank, generation=generation, event=event)


if __name__ == "__main__":
    main()
