"""What torchrun's command line says, which of torch's private details we rest on, and signals that wait their turn."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.launcher import api as launcher

from elastic.config.agents import LaunchSettings
from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.errors import UsageError
from elastic.launch.entry import Command, _check_split, _ready_workers, _sharing, node_of, torchrun_command
from elastic.launch.signals import LeaveSignals
from elastic.launch.torch_details import (
    TorchChanged,
    handler_with,
    missing_details,
    put_agent_in_place,
    take_signals,
    take_starts,
)
from elastic.launch.variables import threads_for
from elastic.launch.worker_main import run_worker

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ["/usr/bin/torchrun", "--nnodes=1:4", "--rdzv_backend=etcd"]


class TestCommand:
    def test_the_literal_command(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        command = torchrun_command([*TORCHRUN, "elastic/worker.py", "--steps", "5"])
        assert (command.script, command.arguments, command.slots) == ("elastic/worker.py", ("--steps", "5"), 1)
        assert command.ours

    def test_other_ways_to_name_our_worker(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert torchrun_command([*TORCHRUN, str(ROOT / "elastic" / "worker.py")]).ours
        assert torchrun_command([*TORCHRUN, "-m", "elastic.worker", "--steps=5"]).ours
        (tmp_path / "link.py").symlink_to(ROOT / "elastic" / "worker.py")
        assert torchrun_command([*TORCHRUN, "link.py"]).ours

    def test_a_script_of_the_users_own(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        command = torchrun_command([*TORCHRUN, "--nproc-per-node=3", "elastic/worker.py", "--lr", "0.1"])
        assert not command.ours, "another file of that name"
        assert (command.arguments, command.slots) == (("--lr", "0.1"), 3)

    def test_slots_auto(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
        for word in ("auto", "cpu"):
            command = torchrun_command([*TORCHRUN, f"--nproc-per-node={word}", "x.py"])
            assert command.slots == len(os.sched_getaffinity(0))

    def test_python_m_torch_distributed_run(self):
        assert torchrun_command(["/x/torch/distributed/run.py", "--nnodes=2", "x.py", "a"]).script == "x.py"

    def test_another_program(self):
        command = torchrun_command(["pytest", "-q"])
        assert (command.script, command.arguments, command.slots) == ("", (), 1)
        assert not command.ours

    def test_a_batch_that_the_least_world_cannot_split(self):
        _check_split(Settings(), min_workers=24)
        with pytest.raises(UsageError, match="global batch of 24 samples cannot be split over the 25 workers"):
            _check_split(Settings(), min_workers=25)


class TestSharing:
    """What is printed at the start: how well each number of nodes, from the least to the most, shares out a step."""

    def told(self, *, nodes, slots=1, **training):
        settings = with_overrides(Settings(), {"global_batch_size": 22, "micro_batch_size": 4, **training})
        return _sharing(settings, Command(script="x.py", arguments=(), slots=slots), nodes=nodes)

    def test_from_the_least_to_the_most_nodes(self):
        assert self.told(nodes=range(2, 8)) == (
            "a step is 6 micro-batches; by workers: 2: 3 each, 0% idle; 3: 2 each, 0% idle; 4: 2 each, 25% idle; "
            "5: 2 each, 40% idle; 6: 1 each, 0% idle; 7: 1 each, 14% idle"
        )

    def test_workers_of_a_node_and_what_an_exact_sum_exchanges(self):
        assert self.told(nodes=range(1, 3), slots=2, numerics="exact") == (
            "a step is 6 micro-batches; by workers: 2: 3 each, 0% idle, 2 sums; 4: 2 each, 25% idle"
        )

    def test_a_batch_that_grows_with_the_workers(self):
        line = self.told(nodes=range(1, 3), batch="per_rank", rank_batch_size=8)
        assert line.startswith("each worker takes 8 samples a step")

    def test_very_many_nodes_are_cut_short(self):
        line = self.told(nodes=range(1, 5000))
        assert line.endswith("64: 1 each, 91% idle; …")


class TestDetails:
    def test_they_hold_for_the_torch_that_is_here(self):
        assert missing_details() == ()

    def test_our_agent_and_our_handler_take_their_places(self, monkeypatch):
        monkeypatch.setattr(launcher, "LocalElasticAgent", launcher.LocalElasticAgent)
        monkeypatch.setattr(processes, "_terminate_process_handler", processes._terminate_process_handler)
        put_agent_in_place(dict)
        take_signals(print)
        assert launcher.LocalElasticAgent is dict
        assert processes._terminate_process_handler is print

    def test_another_torch_is_refused(self, monkeypatch):
        def launch_agent():
            agent = LocalElasticAgent()  # noqa: F821 - its text is what counts
            return agent, get_rendezvous_handler()  # noqa: F821

        before = launcher.LocalElasticAgent
        monkeypatch.setattr(launcher, "launch_agent", launch_agent)
        assert len(missing_details()) == 1
        with pytest.raises(TorchChanged, match="does not build the handler before the agent"):
            put_agent_in_place(dict)
        assert launcher.LocalElasticAgent is before

    def test_each_detail_is_looked_for(self, monkeypatch):
        class Base:
            def start(self):
                """Nothing of what we use."""

        class Other(Base):
            """Neither here."""

        monkeypatch.setattr("elastic.launch.torch_details.LocalElasticAgent", Other)
        monkeypatch.setattr(processes, "PContext", Other)
        monkeypatch.setattr(processes, "SubprocessContext", Other)
        monkeypatch.setattr("elastic.launch.torch_details.SubprocessHandler", Other)
        found = ", ".join(missing_details())
        for word in ("_invoke_run", "_start_workers", "_shutdown", "_pcontext", "_terminate_process_handler"):
            assert word in found
        for word in ("subprocess_handlers", "get_subprocess_handler", "_popen", "_stdout", "_stderr"):
            assert word in found

    def test_ours_is_asked_for_each_worker_and_torchs_own_where_it_declines(self, monkeypatch, tmp_path):
        monkeypatch.setattr(processes, "get_subprocess_handler", processes.get_subprocess_handler)
        asked = []
        take_starts(handler_with(lambda command, environ, files: asked.append((command, environ["ONE"], files))))
        handler = processes.get_subprocess_handler(
            entrypoint="sh",
            args=("-c", "echo $ONE"),
            env={"ONE": "1"},
            stdout=str(tmp_path / "out"),
            stderr="",
            local_rank_id=0,
            numa_options=None,
        )
        assert handler.proc.wait() == 0
        assert (tmp_path / "out").read_text() == "1\n"
        assert asked == [(("sh", "-c", "echo $ONE"), "1", [0, handler._stdout.fileno(), 2])]
        handler._stdout.close()
        taken = object()
        take_starts(handler_with(lambda *_: taken))
        more = {"stdout": "", "stderr": "", "local_rank_id": 0, "numa_options": None}
        assert processes.get_subprocess_handler(entrypoint="x", args=(), env={}, **more).proc is taken


class TestReadyWorkers:
    def wanted(self, command, **launch):
        settings = Settings(launch=LaunchSettings(**launch))
        return _ready_workers(settings, command, environ={"A": "1"})

    def test_our_worker_has_the_jobs_module_imported(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        found = self.wanted(torchrun_command([*TORCHRUN, "elastic/worker.py"]))
        assert found._module == "jobs.pretrain_lm"
        assert found._environ == {"A": "1", "OMP_NUM_THREADS": "1"}
        found.stop()

    def test_of_another_script_nothing_is_known(self):
        found = self.wanted(torchrun_command([*TORCHRUN, "train.py", "--epochs", "3"]))
        assert found._module == ""
        found.stop()

    def test_when_there_are_none(self):
        script = torchrun_command([*TORCHRUN, "train.py"])
        assert self.wanted(script, ready_workers=False) is None
        assert self.wanted(torchrun_command([*TORCHRUN, "--no-python", "./train"])) is None
        assert self.wanted(torchrun_command([*TORCHRUN, "--numa-binding=node", "train.py"])) is None
        assert self.wanted(torchrun_command(["pytest"])) is None


class TestSignals:
    @pytest.fixture
    def signals(self):
        woken = []
        made = LeaveSignals(on_signal=lambda: woken.append(1))
        made.woken = woken
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        yield made
        for number, handler in before.items():
            signal.signal(number, handler)

    def test_until_the_start_is_over_one_ends_it_at_once(self, signals):
        signals.install("SIGTERM, SIGHUP")
        with pytest.raises(SignalException) as raised:
            signal.raise_signal(signal.SIGHUP)
        assert "SIGHUP" in str(raised.value)
        assert signals.first == "SIGHUP"

    def test_after_that_it_waits_for_a_check(self, signals):
        signals.install("SIGTERM")
        signals.defer()
        signals.check()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == ["SIGTERM", "SIGTERM"]
        assert len(signals.woken) == 2
        with pytest.raises(SignalException, match="SIGTERM"):
            signals.check()

    def test_a_wish_from_elsewhere_is_as_a_signal_and_one_signal_after_it_is_the_same_wish(self, signals):
        signals.install("SIGTERM")
        signals.defer()
        signals.ask("drained")
        signals.ask("and once more")
        with pytest.raises(SignalException, match="drained"):
            signals.check()
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == ["drained"]
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == ["drained", "SIGTERM"]
        assert signals.first == "drained"

    def test_in_another_thread_it_installs_nothing(self, signals):
        before = signal.getsignal(signal.SIGTERM)
        thread = threading.Thread(target=signals.install, args=("SIGTERM",))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--stepz=5"], "steps"), (["--job", "nowhere:job"], "no module 'nowhere'"), (["--config", "/none"], "/none")],
)
def test_a_worker_that_cannot_begin_ends_with_64_and_one_message(arguments, words, caplog, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(SystemExit) as ended:
        run_worker(arguments, environ={})
    assert ended.value.code == 64
    assert words in caplog.text


@pytest.mark.parametrize(
    ("wanted", "environ", "told"),
    [
        (1, {}, "1"),
        (4, {}, "4"),
        (4, {"OMP_NUM_THREADS": "2"}, None),
        (0, {}, None),
        (0, {"OMP_NUM_THREADS": "2"}, None),
    ],
)
def test_threads_of_a_worker(wanted, environ, told):
    assert threads_for(wanted, environ=environ).get("OMP_NUM_THREADS") == told


@pytest.mark.parametrize("name", ["rack1/n1", "../n1", "..", ".n1", "n\n1", "n\x001"])
def test_a_name_that_files_cannot_be_made_of_is_refused(name):
    with pytest.raises(UsageError, match="no slash, no control character and no dot in front"):
        node_of({"ELASTIC_NODE": name})


def test_a_node_is_named_by_its_variable_or_its_host():
    assert node_of({"ELASTIC_NODE": "n-1.rack_2 ü"}) == "n-1.rack_2 ü"
    assert node_of({}) == node_of({"ELASTIC_NODE": ""}) == socket.gethostname()
