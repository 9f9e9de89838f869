"""Bringing an iteration to every place: sound files travel over the process group to the nodes that lack them.

Every rank takes part in every message, to the end. What arrives is written like a save: to a directory of this attempt,
forced to disk, manifest last, then renamed; so a node that dies meanwhile holds nothing that could be taken for whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastic.checkpoint.arrivals import PEER, Arrivals, Count, nowhere
from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.holdings import Delivery, copies_of, route
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, aside_name, iteration_dir, temp_name
from elastic.checkpoint.manifest import FileFacts, Manifest, digest
from elastic.checkpoint.places import Places, share
from elastic.checkpoint.seams import Group
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small
from elastic.errors import CheckpointError

CHUNK_BYTES = 8 << 20
"""Sent at a time; ranks that neither send nor keep a file need no more memory than that."""


def bring(
    root: str, *, manifest_digest: str, iteration: int, generation: int, places: Places, group: Group, storage: Storage,
    nonce: Callable[[], str], tell: Callable[[str], None], arrivals: Arrivals,
) -> str | None:  # fmt: skip
    """Have this iteration under its name in every place; why that cannot be, or None. Every rank calls it.

    Raises:
        CheckpointError: a node cannot keep it, so that it cannot take part.
        PeerLost: from the group.
    """
    stock = _Stock(root, manifest_digest, storage)
    if places.lead:
        stock.look()
    told = share(group, stock.told() if places.lead else None)
    reports = [told[lead] for lead in places.leads]
    text = next((each["manifest"] for each in reports if each["manifest"] is not None), None)
    if text is None:
        return "its manifest is on no node any more"
    manifest = Manifest.from_bytes(text.encode())
    wanted = {name: facts.size_bytes for name, facts in manifest.files.items()}
    routes = route([each["sound"] for each in reports], wanted=wanted)
    if routes.fault:
        faults = [f"place {place}: {each['fault']}" for place, each in enumerate(reports) if each["fault"]]
        return "; ".join([routes.reason, *faults])
    if group.rank == 0 and routes.deliveries:
        tell(f"iteration {iteration}: {routes.reason}")
    received, fault = _deliver(routes.deliveries, manifest.files, stock, places, group, arrivals)
    unkept = None
    if places.lead and fault is None:
        unkept = _keep(root, iteration, generation, received, text.encode(), manifest, stock, storage, nonce)
    votes = share(group, [fault, unkept])
    for rank, (_, each) in enumerate(votes):
        if each is not None:  # an older iteration may be there already, but nothing is wrong with this one
            raise CheckpointError(
                f"the node of rank {rank} lacks what the others hold, and {each}. Give it room and permission in "
                f"checkpoint.save_path {root}, or let the others go on without it"
            )
    return next((f"rank {rank}: {each}" for rank, (each, _) in enumerate(votes) if each is not None), None)


class _Stock:
    """What a place has of one iteration: where each sound file lies."""

    def __init__(self, root: str, manifest_digest: str, storage: Storage) -> None:
        self._root, self._digest, self.storage = root, manifest_digest, storage
        self.manifest: bytes | None = None
        self.paths: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.whole: list[str] = []
        """Directories in which every file is sound."""
        self.fault = ""

    def look(self) -> None:
        """Read every copy that is here; what cannot be read is not here."""
        try:
            for name in copies_of(self._root, manifest_digest=self._digest, storage=self.storage):
                self._look_into(name)
        except (OSError, ValueError) as error:
            self.fault = str(error)

    def _look_into(self, name: str) -> None:
        directory = os.path.join(self._root, name)
        data = read_small(os.path.join(directory, MANIFEST), storage=self.storage, limit_bytes=MAX_JSON_BYTES)
        if digest(data) != self._digest:
            return
        self.manifest = data
        files = Manifest.from_bytes(data).files
        sound = {each for each, facts in files.items() if self._is_sound(os.path.join(directory, each), facts)}
        for each in sound:
            self.paths.setdefault(each, os.path.join(directory, each))
            self.sizes[each] = files[each].size_bytes
        if len(sound) == len(files):
            self.whole.append(name)

    def _is_sound(self, path: str, facts: FileFacts) -> bool:
        try:
            if self.storage.size_bytes(path) == facts.size_bytes and self.storage.facts(path) == facts:
                return True
            self.fault = f"{os.path.basename(path)} is not what was written"
        except OSError as error:
            self.fault = str(error)
        return False

    def told(self) -> dict[str, Any]:
        """JSON types only."""
        text = self.manifest.decode() if self.manifest is not None else None
        return {"manifest": text, "sound": self.sizes, "fault": self.fault}


def _deliver(
    deliveries: tuple[Delivery, ...], files: Mapping[str, FileFacts], stock: _Stock, places: Places, group: Group,
    arrivals: Arrivals,
) -> tuple[dict[str, bytes], str | None]:  # fmt: skip
    received: dict[str, bytes] = {}
    fault: str | None = None
    for each in deliveries:
        sends = group.rank == places.leads[each.source]
        keeps = places.lead and places.mine in each.targets
        count = arrivals.begin(PEER, givers=(places.leads[each.source],)) if keeps else nowhere
        path = stock.paths[each.name] if sends else None
        data, problem = send(each, path, keeps, stock.storage, group, count=count)
        if problem is None and keeps:
            problem = fault_of(bytes(data), files[each.name], name=each.name)
        if keeps:
            received[each.name] = bytes(data)
        fault = fault or problem
    return received, fault


def send(
    each: Delivery, path: str | None, keeps: bool, storage: Storage, group: Group, *, count: Count = nowhere
) -> tuple[bytearray, str | None]:  # fmt: skip
    """One file to whoever keeps it, and what was wrong. Every rank calls it; `path`: where the sender has it.

    Bytes are added as integers, and all but the sender add 0. Raises PeerLost.
    """
    data = bytearray()
    fault = None
    for start in range(0, each.size_bytes, CHUNK_BYTES):
        stop = min(start + CHUNK_BYTES, each.size_bytes)
        part = torch.zeros(stop - start + 1, dtype=torch.uint8)
        if path is not None:
            part[-1] = not _fill(part, path, start, stop, storage)
        group.sum_(part)
        if int(part[-1]):
            fault = f"{each.name} could not be read by the node that sent it"
        if keeps:
            data += part[:-1].numpy().tobytes()
        count(stop - start)
    return data, fault


def _fill(part: torch.Tensor, path: str, start: int, stop: int, storage: Storage) -> bool:
    try:
        data = storage.read_part(path, start, stop)
    except OSError:
        return False
    if len(data) != stop - start:
        return False
    part[:-1] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return True


def _keep(
    root: str, iteration: int, generation: int, received: Mapping[str, bytes], text: bytes, manifest: Manifest,
    stock: _Stock, storage: Storage, nonce: Callable[[], str],
) -> str | None:  # fmt: skip
    """Put together what this place has and what came, under the iteration's name."""
    place = iteration_dir(iteration)
    try:
        if place in stock.whole:
            return None
        if stock.whole:
            source = stock.whole[0]
            storage.sync_dir(os.path.join(root, source))
        else:
            source = temp_name(iteration=iteration, generation=generation, nonce=nonce())
            storage.make_dir(os.path.join(root, source))
            for name in manifest.files:
                data = received[name] if name in received else storage.read(stock.paths[name])
                storage.write(os.path.join(root, source, name), data)
            storage.write(os.path.join(root, source, MANIFEST), text)
            storage.sync_dir(os.path.join(root, source))
        if place in storage.names(root):
            storage.publish(os.path.join(root, place), os.path.join(root, aside_name(place, nonce=nonce())))
        storage.publish(os.path.join(root, source), os.path.join(root, place))
        storage.sync_dir(root)
    except OSError as error:
        return f"{place} cannot be kept here: {error}"
    return None
