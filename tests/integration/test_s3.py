"""Checkpoints on a real S3-compatible server, over HTTP: the verbs, whole runs, and requests that fail."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from elastic.checkpoint.layout import TRACKER
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.reader import Reader
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.seams import AloneGroup
from elastic.cli import main
from elastic.clock import ManualClock
from elastic.errors import CheckpointError
from elastic.events import Restored
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.harness.checkpoints import Bench, CheckpointSettings, make_run, meta, same
from tests.harness.s3 import BUCKET, SECRET, S3Server, Trouble
from tests.harness.survival import cluster, durable, exact_account

pytestmark = pytest.mark.integration

LONG = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def server():
    with S3Server() as server:
        yield server


@pytest.fixture
def url(server, monkeypatch, request):
    torch.set_num_threads(1)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}"


def stored(url):
    """A storage that does not wait between tries."""
    return storage_for(url, clock=ManualClock())


def bench(url, tmp_path):
    return Bench(tmp_path), {"save_path": url}


def test_a_bucket_that_is_not_there_is_said_to_be_missing(url, capsys):
    gone = "s3://no-such-bucket-here/x"
    with pytest.raises(OSError, match="no such bucket"):
        stored(gone).names(gone)
    assert main(["ckpt", "ls", gone]) != 0
    assert "no such bucket" in "".join(capsys.readouterr())


def test_the_verbs(url):
    storage = stored(url)
    temp, place = f"{url}/.tmp-1-1-a", f"{url}/iteration_00000001"
    assert storage.names(url) == []
    assert storage.create(f"{url}/x", b"1")
    assert not storage.create(f"{url}/x", b"2")
    with pytest.raises(FileExistsError):
        storage.write(f"{url}/x", b"2")
    storage.make_dir(temp)
    storage.write(f"{temp}/a", b"abcdef")
    storage.publish(temp, place)
    assert (storage.names(url), storage.names(place)) == (["iteration_00000001", "x"], ["a"])
    assert (storage.read(f"{place}/a"), storage.read_part(f"{place}/a", 2, 4)) == (b"abcdef", b"cd")
    assert (storage.size_bytes(f"{place}/a"), storage.size_bytes(f"{place}/b")) == (6, None)
    storage.make_dir(temp)
    storage.write(f"{temp}/a", b"another")
    with pytest.raises(FileExistsError):
        storage.publish(temp, place)
    storage.replace(f"{url}/x", b"22")
    assert storage.read(f"{url}/x") == b"22"
    with pytest.raises(FileNotFoundError):
        storage.read(f"{url}/none")
    storage.remove_tree(temp)
    storage.remove_tree(place)
    assert storage.names(url) == ["x"]


@LONG
def test_save_retain_restore_verify_prune(url, tmp_path, server, capsys):
    here, where = bench(url, tmp_path)
    run, manager = make_run(), here.manager(storage=stored(url), save_max=2, **where)
    for iteration in range(1, 5):
        assert manager.save(run.step().tracked, meta(iteration)).saved
    other = make_run(seed=5)
    assert here.manager(storage=stored(url), **where).restore(other.tracked).iteration == 4
    assert same(run, other)

    def ckpt(*arguments):
        code = main(["ckpt", *arguments])
        return code, capsys.readouterr().out

    code, out = ckpt("ls", url, "--json")
    assert (code, [row["iteration"] for row in json.loads(out)["iterations"] if row["state"] != "aside"]) == (0, [3, 4])
    assert ckpt("show", url)[1].count("embed.weight") > 1
    code, out = ckpt("verify", url)
    assert (code, out.splitlines()[-1].split(", ")[1]) == (0, "0 damaged")
    code, out = ckpt("diff", f"{url}/iteration_00000003", f"{url}/iteration_00000004", "--contents")
    assert (code, "contents of body.bias" in out) == (1, True)
    code, out = ckpt("prune", url, "--keep", "1", "--yes")
    assert (code, "deleted iteration_00000003" in out) == (0, True)
    assert storage_for(url).names(url)[1:2] == ["iteration_00000004"]
    assert ckpt("export", url, str(tmp_path / "exported"))[0] == 0
    key = next(key for key in server.keys(url.removeprefix(f"s3://{BUCKET}/")) if "-model-" in key)
    client = server.client()
    data = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    client.put_object(Bucket=BUCKET, Key=key, Body=data[:-1] + bytes([data[-1] ^ 1]))
    code, out = ckpt("verify", url)
    assert (code, "its checksum does not match" in out) == (1, True)


@pytest.mark.parametrize(
    ("kind", "concern"),
    [
        ("lose", "PUT"),
        pytest.param("cut", "GET", marks=LONG),
        pytest.param("refuse", "PUT", marks=LONG),
        pytest.param("wait", "PUT", marks=LONG),
        pytest.param("refuse", "GET", marks=LONG),
        pytest.param("refuse", "HEAD", marks=LONG),
        pytest.param("refuse", "POST", marks=LONG),
    ],
)
def test_a_request_that_fails_is_repeated(url, tmp_path, server, kind, concern, caplog):
    """At several places of a save and of the restore after it."""
    here, where = bench(url, tmp_path)
    run = make_run().step()
    assert here.manager(storage=stored(url), **where).save(run.tracked, meta(1)).saved
    fired = 0
    for iteration, at in enumerate((0, 3, 7), start=2):
        trouble = Trouble(kind, at=at, concern=lambda environ: environ["REQUEST_METHOD"] == concern)
        with server.with_trouble(trouble):
            manager = here.manager(storage=stored(url), generation=iteration, save_max=1, **where)
            other = make_run(seed=5)
            other.steps = manager.restore(other.tracked).iteration
            assert manager.save(other.step().tracked, meta(iteration, generation=iteration)).saved
            fired += trouble.fired
        assert same(other, make_run().step(iteration))
    assert fired, "the fault was met"
    told = sum("is tried again" in record.message for record in caplog.records)
    assert told == (0 if kind == "wait" else fired)


@LONG
def test_a_server_that_is_away_costs_a_save_and_not_the_run(url, tmp_path, server):
    here, where = bench(url, tmp_path)
    run, manager = make_run(), here.manager(storage=stored(url), **where)
    assert manager.save(run.step().tracked, meta(1)).saved
    with server.with_trouble(Trouble("refuse", times=10_000)) as trouble:
        assert not manager.save(run.step().tracked, meta(2)).saved
        assert trouble.fired >= 6
        assert "checkpoint_failed" in here.kinds()
        with pytest.raises(CheckpointError, match="cannot look for checkpoints"):
            _restore(here, url)
    assert manager.save(run.step().tracked, meta(3)).saved
    other = make_run(seed=5)
    assert here.manager(storage=stored(url), **where).restore(other.tracked).iteration == 3
    assert same(run, other)


def _restore(here, url):
    reader = Reader(
        CheckpointSettings(save_path=url), RootIdentity(job_id="job", lineage="l"), group=AloneGroup(),
        storage=stored(url), emit=print, committer=here.committer, nonce=lambda: "n", clock=ManualClock(),
    )  # fmt: skip
    return reader.restore({})


@LONG
def test_a_run_under_torchrun_saves_there_and_comes_back(tmp_path: Path, etcd: EtcdServer, server: S3Server) -> None:
    """A node is killed, then all of them, while requests fail now and then. The secret is told nowhere."""
    url = f"s3://{BUCKET}/{tmp_path.name}"
    here = ROOT / local_dir(url)
    (here / "events").mkdir(parents=True)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "events").symlink_to(here / "events")
    environ = {**server.environ, "ELASTIC__CHECKPOINT__SAVE_PATH": url}
    chances = itertools.cycle(range(17))
    unlucky = Trouble("refuse", times=1_000_000, concern=lambda environ: next(chances) == 0)
    try:
        with (
            server.with_trouble(unlucky),
            cluster(tmp_path, etcd.endpoint, steps=150, options=(f"--rdzv-id={tmp_path.name}",), **environ) as run,
        ):
            for name in ("a", "b"):
                run.start(name)
            run.wait_step(60, world_size=2)
            run.nodes["b"].kill()
            at = run.now()
            run.wait_step(70, world_size=1, since=at)
            run.nodes["a"].kill()
            saved = [r.event.iteration for r in run.follower.records if durable(r)]  # type: ignore[attr-defined]
            at = run.now()
            for name in ("a", "b"):
                run.start(name)
            again = run.wait(lambda r: isinstance(r.event, Restored), what="a restore", limit_s=90, since=at)
            assert again.event.iteration >= max(saved)  # type: ignore[attr-defined]
            assert [run.wait_exit(name, limit_s=200) for name in ("a", "b")] == [0, 0]
            assert exact_account(run).steps == 150
            assert unlucky.fired > 5
            told = "".join(path.read_text() for path in [*tmp_path.glob("*.log"), *(here / "events").rglob("*.json*")])
            assert SECRET not in told
    finally:
        shutil.rmtree(here)
    client = server.client()
    assert client.get_object(Bucket=BUCKET, Key=f"{tmp_path.name}/{TRACKER}")["Body"].read() == b"150"
    texts = "".join(
        client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode(errors="replace")
        for key in server.keys(tmp_path.name)
        if key.endswith((".json", ".dir", ".txt"))
    )
    assert "save_path" in texts
    assert SECRET not in texts
