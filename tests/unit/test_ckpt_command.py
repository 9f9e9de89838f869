"""`elastic ckpt`: what each action prints and does, its exit codes, and that most need no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from elastic.cli import build_parser, main
from elastic.errors import ExitCode
from elastic.events import encode
from tests.harness.awkward import make_awkward, train
from tests.harness.checkpoints import Bench, NoRecord, make_run, meta
from tests.unit.test_checkpoint_interval import records

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def run(capsys):
    def call(*argv: object) -> tuple[int, str]:
        code = main(["ckpt", *map(str, argv)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out + err

    return call


@pytest.fixture
def as_json(run):
    def call(*argv: object) -> tuple[int, dict]:
        code, out = run(*argv, "--json")
        return code, json.loads(out)

    return call


@pytest.fixture
def bench(tmp_path):
    """Iterations 10, 20, 30, 40 of one run."""
    bench = Bench(tmp_path / "root", committer=NoRecord())
    run = make_run()
    manager = bench.manager()
    for iteration in (10, 20, 30, 40):
        manager.save(run.step().tracked, meta(iteration, settings={"training": {"seed": iteration}}))
    return bench


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def model_file(bench, iteration):
    return next(bench.directory(iteration).glob("*-model-*"))


def test_ls(bench, run, as_json):
    (bench.root / "iteration_00000050").mkdir()
    model_file(bench, 20).unlink()
    code, out = run("ls", bench.root)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert [line[:3] for line in lines[1:]] == [
        ["iteration_00000010", "whole", "80"],
        ["iteration_00000020", "damaged", "160"],
        ["iteration_00000030", "whole", "240"],
        ["iteration_00000040", "next", "320"],
        ["iteration_00000050", "damaged", "0"],
    ]
    _, found = as_json("ls", bench.root)
    assert "is missing" in found["iterations"][1]["problem"]
    assert found["iterations"][3]["total_bytes"] == sum(p.stat().st_size for p in bench.directory(40).iterdir())


def test_show(bench, run, as_json):
    code, out = run("show", bench.root)
    assert code == 0
    assert "iteration_00000040" in out.splitlines()[0]
    assert "head.weight = embed.weight" in out
    _, found = as_json("show", bench.directory(10))
    assert (found["facts"]["iteration"], found["facts"]["seed"]) == (10, 7)
    assert found["objects"] == {"model": "module", "optimizer": "optimizer", "schedule": "other"}
    shapes = {each["name"]: (each["dtype"], each["shape"]) for each in found["tensors"]}
    assert shapes["embed.weight"] == shapes["exp_avg.embed.weight"] == ("F32", [7, 4])


def test_verify_names_each_damaged_file(bench, run, as_json):
    assert run("verify", bench.root) == (0, "20 files read, 0 damaged\n")
    flip(model_file(bench, 20))
    (bench.directory(40) / "common.json").unlink()
    flip(bench.directory(30) / "elastic.json", 30)
    (bench.root / "latest_checkpointed_iteration.txt").write_text("60")
    code, out = run("verify", bench.root)
    assert code == ExitCode.FAILED
    assert f"iteration_00000020/{model_file(bench, 20).name}: it is not what was written" in out
    assert re.search(r"in bytes \d+ to \d+ \([a-z_.]+\)", out), "the damage is not told by place and tensor"
    assert "iteration_00000040/common.json: cannot be read" in out
    assert "iteration_00000030/elastic.json: " in out
    assert "latest_checkpointed_iteration.txt: the tracker says 60: no such iteration" in out
    assert "4 damaged" in out
    code, found = as_json("verify", bench.directory(20))
    assert code == ExitCode.FAILED
    assert [each["name"] for each in found["files"] if each["problem"]] == [model_file(bench, 20).name]
    assert run("verify", bench.directory(10))[0] == 0


@pytest.mark.parametrize("region", ["common.json", "metadata.json", "elastic.json", "-model-", "-opt-"])
def test_verify_finds_a_bit_in_every_region(bench, run, region):
    path = next(each for each in bench.directory(40).iterdir() if region in each.name)
    size = path.stat().st_size
    for at in (0, size // 3, size // 2, size - 1):
        flip(path, at)
        code, out = run("verify", bench.directory(40))
        assert (code, path.name in out) == (ExitCode.FAILED, True), at
        flip(path, at)
    assert run("verify", bench.directory(40))[0] == 0


def test_diff(bench, run, as_json, tmp_path):
    assert run("diff", bench.root, bench.directory(40), "--contents") == (0, "no difference\n")
    code, found = as_json("diff", bench.directory(10), bench.directory(20))
    changes = {each["what"]: (each["one"], each["other"]) for each in found["changes"]}
    assert code == ExitCode.FAILED
    assert changes == {"iteration": (10, 20), "consumed_samples": (80, 160), "settings.training.seed": (10, 20)}
    _, found = as_json("diff", bench.directory(10), bench.directory(20), "--contents")
    assert {"contents of embed.weight", "contents of exp_avg.embed.weight"} <= {
        each["what"] for each in found["changes"]
    }
    other = Bench(tmp_path / "other")
    model = nn.Linear(3, 4)
    other.manager().save({"model": model}, meta(10))
    code, out = run("diff", bench.directory(10), other.directory(10))
    assert "tensor embed.weight" in out
    assert "object schedule" in out


def test_prune_tells_first_and_deletes_only_when_told(bench, run, as_json):
    before = sorted(path.name for path in bench.root.iterdir())
    code, out = run("prune", bench.root, "--keep", 2)
    assert code == 0
    assert "would delete iteration_00000010\nwould delete iteration_00000020\n" in out
    assert sorted(path.name for path in bench.root.iterdir()) == before
    code, found = as_json("prune", bench.root, "--keep", 2, "--yes")
    assert (found["delete"], found["deleted"]) == (["iteration_00000010", "iteration_00000020"], True)
    assert sorted(path.name for path in bench.root.glob("iter*")) == ["iteration_00000030", "iteration_00000040"]
    target = make_run(seed=5)
    assert bench.manager().restore(target.tracked).iteration == 40


def test_prune_keeps_what_may_be_committed_and_the_last_good_one(bench, run):
    tracker = bench.root / "latest_checkpointed_iteration.txt"
    tracker.write_text("30")  # 40 may be committed, its tracker late
    flip(model_file(bench, 30))
    flip(model_file(bench, 40))
    run("prune", bench.root, "--keep", 1, "--yes")
    assert sorted(path.name[-2:] for path in bench.root.glob("iter*")) == ["20", "30", "40"]
    tracker.unlink()
    code, out = run("prune", bench.root, "--keep", 1, "--yes")
    assert (code, "nothing is deleted" in out) == (ExitCode.USAGE, True)
    tracker.write_text("40")
    flip(model_file(bench, 20))
    code, out = run("prune", bench.root, "--keep", 1, "--yes")
    assert (code, "no iteration reads back whole" in out) == (ExitCode.INTERNAL, True)
    assert len(list(bench.root.glob("iter*"))) == 3


def test_prune_empties_the_trash_but_for_what_may_be_committed(bench, run):
    for iteration in (10, 40):
        place = f"iteration_{iteration:08d}"
        (bench.root / place).rename(bench.root / f".trash-{place}-abc")
    (bench.root / "latest_checkpointed_iteration.txt").write_text("30")
    assert run("prune", bench.root, "--keep", 5, "--yes")[0] == 0
    assert [path.name for path in bench.root.glob(".trash*")] == [".trash-iteration_00000040-abc"]


def test_prune_leaves_what_others_wrote_and_milestones(bench, run):
    (bench.root / "iteration_00000005").mkdir()
    (bench.root / "iteration_00000005" / "common.json").write_text("{}")
    manager = bench.manager()
    manager.save(make_run().tracked, meta(50, settings={"checkpoint": {"keep_every_steps": 20}}))
    run("prune", bench.root, "--keep", 1, "--yes")
    assert sorted(path.name[-2:] for path in bench.root.glob("iter*")) == ["05", "20", "40", "50"]


@pytest.mark.parametrize("most_bytes", [10**9, 200])
def test_export_is_read_by_others_and_by_us(tmp_path, run, as_json, most_bytes):
    bench = Bench(tmp_path / "root")
    source = make_awkward(0)
    train(source, 0, 2)
    del source["model"].of_complex128
    bench.manager().save(source, meta(2))
    out = tmp_path / "out"
    code, done = as_json("export", bench.root, out, "--most-bytes", most_bytes)
    assert (code, done["left_out"]) == (0, ["head.weight = embed"])
    files = sorted(out.glob("*.safetensors"))
    assert (len(files) == 1) == (most_bytes > 200)
    held = {name: value for path in files for name, value in load_file(path).items()}
    wanted = source["model"].state_dict()
    assert held.keys() == wanted.keys() - {"head.weight"}
    for name, value in held.items():
        assert value.dtype == wanted[name].dtype
        assert torch.equal(value.reshape(-1).view(torch.uint8), wanted[name].contiguous().reshape(-1).view(torch.uint8))
    target = make_awkward(9)
    del target["model"].of_complex128
    restored = Bench(tmp_path / "new").manager(load_path=str(out), no_load_optim=True).restore(target)
    assert (restored.iteration, restored.consumed_samples) == (0, 0)
    assert torch.equal(target["model"].embed, source["model"].embed)
    assert torch.equal(target["masters"].state[target["model"].low]["main_param"], source["model"].low.float())
    assert run("export", bench.root, out)[0] == ExitCode.USAGE  # never over what is there
    assert run("verify", out)[0] == 0


def test_export_refuses_what_the_form_cannot_hold_and_what_is_damaged(tmp_path, run, bench):
    odd = Bench(tmp_path / "odd")
    odd.manager().save(make_awkward(0), meta(2))
    code, out = run("export", odd.root, tmp_path / "out")
    assert (code, "complex128, which of_complex128 is" in out) == (ExitCode.USAGE, True)
    flip(model_file(bench, 40))
    code, out = run("export", bench.directory(40), tmp_path / "out")
    assert (code, "checksum does not match" in out) == (ExitCode.INTERNAL, True)
    assert not list(tmp_path.glob("out*"))


WITHOUT_TORCH = """
import contextlib, io, json, sys
sys.modules["torch"] = sys.modules["safetensors"] = sys.modules["numpy"] = None  # to import one of them is an error
from elastic.cli import main
told = {}
for line in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["ckpt", *line])
    told[line[0]] = code, json.loads(out.getvalue()) if "--json" in line else out.getvalue()
print(json.dumps(told))
"""


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "text"])
def test_look_verify_compare_prune_export_and_advise_without_torch(bench, tmp_path, form):
    """In a Python that can import neither torch nor safetensors nor numpy; each also as one JSON object."""
    root, place = str(bench.root), str(bench.directory(10))
    lines = [
        *(["ls", root], ["show", root], ["verify", root], ["diff", root, place, "--contents"], ["advise", root]),
        *(["export", root, str(tmp_path / "out")], ["prune", root, "--keep", "1", "--yes"]),
    ]
    (bench.root / "events").mkdir()
    (bench.root / "events" / "a.jsonl").write_text("".join(f"{encode(each)}\n" for each in records()))
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([line + form for line in lines])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    codes = {name: code for name, (code, _) in told.items()}
    assert codes == dict.fromkeys(("ls", "show", "verify", "advise", "export", "prune"), 0) | {"diff": 1}
    assert all(isinstance(out, dict) and out for _, out in told.values()) == bool(form)
    assert [path.name for path in bench.root.glob("iter*")] == ["iteration_00000040"]
    assert load_file(tmp_path / "out" / "model.safetensors").keys() >= {"embed.weight"}


def test_the_documented_commands_are_accepted():
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    lines = re.findall(r"^elastic (ckpt .*?)(?:  .*)?$", page, re.MULTILINE)
    assert {line.split()[1] for line in lines} == {
        "ls",
        "show",
        "verify",
        "diff",
        "advise",
        "prune",
        "export",
        "import",
    }
    for line in lines:
        build_parser().parse_args(line.split())


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ([], 64),
        (["nonsense"], 64),
        (["ls"], 64),
        (["ls", "/nowhere"], 64),
        (["show", "/nowhere"], 64),
        (["verify", "/nowhere"], 64),
        (["diff", "/nowhere", "/nowhere"], 64),
        (["prune", "/nowhere", "--keep", "1"], 64),
        (["prune", "/nowhere"], 64),
        (["prune", "/nowhere", "--keep", "0"], 64),
        (["export", "/nowhere", "/nowhere/out"], 64),
        (["import", "/nowhere", "/nowhere/out"], 64),
        (["ls", "/", "more"], 64),
    ],
)
def test_wrong_usage_is_a_message(run, argv, code):
    found, out = run(*argv)
    assert found == code
    assert out.startswith("elastic: ")
