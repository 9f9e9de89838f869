"""Importing MiniMind's resume file with the command: what goes on in our run, what is told, no code of it run."""

from __future__ import annotations

import json
import pickle
import sys

import pytest
import torch

from elastic.cli import main
from elastic.errors import ExitCode
from tests.harness.checkpoints import Bench
from tests.harness.minimind import make, resume_file, train

pytestmark = pytest.mark.integration  # each import starts a process that loads torch

GIVEN = ["--batch-size", "4", "--accumulation-steps", "8", "--dataset-length", "1000"]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def run(capsys):
    def call(*argv: object) -> tuple[int, str]:
        code = main(["ckpt", "import", *map(str, argv)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out + err

    return call


@pytest.fixture
def theirs(tmp_path):
    tracked = make(0)
    train(tracked, 5)
    resume_file(tmp_path / "pretrain_512_resume.pth", tracked, epoch=2, step=45, world_size=2)
    return tmp_path / "pretrain_512_resume.pth", tracked


def test_a_resume_file_goes_on_in_our_run(theirs, run, tmp_path):
    path, source = theirs
    sys.modules.pop("elastic.checkpoint.torch_file", None)
    code, out = run(path, tmp_path / "new", *GIVEN)
    assert code == 0, out
    assert "elastic.checkpoint.torch_file" not in sys.modules  # another process read it
    # 500 samples a rank, 125 micro-batches, 16 optimizer steps an epoch (the last one of 5); step 45 = 5 steps and 5.
    assert "that is iteration 37 and 2320 consumed samples" in out
    assert "5 micro-batches since the last optimizer step left no trace" in out
    assert "batch size 4 a rank, accumulation 8, 1000 samples; from the file: epoch 2, step 45, world size 2" in out
    assert "some of this epoch are used twice" in out
    assert "float16 kept 11 significant bits of 80 weights" in out
    assert "tracks model, optimizer, scaler" in out
    target = make(7)
    restored = Bench(tmp_path / "root").manager(load_path=str(tmp_path / "new")).restore(target)
    assert (restored.iteration, restored.consumed_samples, restored.world_size) == (37, 2320, 2)
    for name, value in source["model"].state_dict().items():
        assert torch.equal(target["model"].state_dict()[name], value.half().float()), name
    assert target["model"].lm_head.weight is target["model"].model.embed_tokens.weight
    assert target["scaler"].state_dict() == source["scaler"].state_dict()
    theirs_by_name, ours_by_name = (
        {name: each["optimizer"].state[value] for name, value in each["model"].named_parameters()}
        for each in (source, target)
    )
    for name, entries in theirs_by_name.items():
        for key, value in entries.items():
            assert torch.equal(ours_by_name[name][key], value), (name, key)
    train(target, 1)


def test_json_and_weights_only(theirs, run, tmp_path):
    path, source = theirs
    code, out = run(path, tmp_path / "new", "--weights-only", "--json")
    assert (code, json.loads(out)["iteration"]) == (0, 0)
    target = make(7)
    Bench(tmp_path / "root").manager(load_path=str(tmp_path / "new"), no_load_optim=True).restore(target)
    assert torch.equal(target["model"].lm_head.weight, source["model"].lm_head.weight.half().float())
    torch.save({name: value.half() for name, value in source["model"].state_dict().items()}, tmp_path / "bare.pth")
    assert run(tmp_path / "bare.pth", tmp_path / "bare", "--weights-only")[0] == 0


def test_what_the_file_lacks_is_asked_for(theirs, run, tmp_path):
    path, _ = theirs
    code, out = run(path, tmp_path / "new", "--batch-size", "4")
    assert code == ExitCode.USAGE
    assert "give --accumulation-steps, --dataset-length, or --weights-only" in out
    code, out = run(path, tmp_path / "new", "--batch-size", "100", *GIVEN[2:])
    assert (code, "make only 5 steps an epoch" in out) == (ExitCode.USAGE, True)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").touch()
    assert run(path, tmp_path / "used", *GIVEN)[0] == ExitCode.USAGE


def test_values_that_float16_lost_stop_the_import(tmp_path, run):
    tracked = make(0)
    train(tracked, 1)
    with torch.no_grad():
        tracked["model"].model.norm.weight[0] = 70000.0
        tracked["model"].model.norm.weight[1] = 1e-9
    path = tmp_path / "big_resume.pth"
    resume_file(path, tracked, epoch=0, step=8, world_size=1)
    code, out = run(path, tmp_path / "new", *GIVEN)
    assert (code, "could not hold 1 values" in out, "model.norm.weight" in out) == (ExitCode.USAGE, True, True)
    code, out = run(path, tmp_path / "new", "--accept-infinite", *GIVEN)
    assert (code, "1 are infinite" in out, "1 are zero" in out) == (0, True, True)


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_no_code_of_the_file_runs(tmp_path, run):
    path, mark = tmp_path / "bad_resume.pth", tmp_path / "mark"
    torch.save({"model": {}, "optimizer": Bomb(mark)}, path)
    code, out = run(path, tmp_path / "new", *GIVEN)
    assert (code, "cannot be read as plain values" in out) == (ExitCode.INTERNAL, True)
    path.write_bytes(pickle.dumps(Bomb(mark)))
    assert run(path, tmp_path / "new", *GIVEN)[0] == ExitCode.INTERNAL
    assert not mark.exists()
    with open(mark, "w"):
        pass  # the bomb would have worked: pickle.loads does open the file
    pickle.loads(path.read_bytes()).close()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: b""], ids=["half", "empty"])
def test_a_torn_file_is_told(theirs, run, tmp_path, spoil):
    path, _ = theirs
    path.write_bytes(spoil(path.read_bytes()))
    code, out = run(path, tmp_path / "new", *GIVEN)
    assert (code, path.name in out) == (ExitCode.INTERNAL, True)
    assert run(tmp_path / "gone.pth", tmp_path / "new", *GIVEN)[0] == ExitCode.USAGE
