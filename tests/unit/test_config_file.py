"""Reading a YAML file of settings: every fault is reported, with its line and a remedy."""

from pathlib import Path

import pytest

from elastic.config.load import Resolved, resolve
from elastic.errors import ConfigError, ExitCode

SEED_EXAMPLE = """\
checkpoint:
  # Save the configuration.
  enable_save: True
  save_path: "./output/ckpt"
  save_interleaved_steps: 1000
  no_save_optim: False
  save_max: 5

  load_path: "./output/ckpt"   # the root directory for saving
  no_load_optim: False
  load_balanced: False
"""


@pytest.fixture
def config(tmp_path: Path):
    path = tmp_path / "run.yaml"

    def load(text: str | bytes) -> Resolved:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return resolve(["--config", str(path)], environ={})

    return load


def faults(config, text: str | bytes) -> list[str]:
    """The problems of a file, without its directory: `run.yaml:3: what`."""
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert caught.value.exit_code == ExitCode.USAGE
    return [f"{Path(problem.where).name}: {problem.what}" for problem in caught.value.problems]


def test_the_seeds_own_example_loads(config):
    checkpoint = config(SEED_EXAMPLE).settings.checkpoint
    assert (checkpoint.save_path, checkpoint.load_path, checkpoint.save_max) == ("./output/ckpt", "./output/ckpt", 5)


def test_a_file_with_seven_faults_reports_all_seven(config):
    text = """\
training:
  global_batch_size: 8
  micro_batch_size: 16
  stepz: 5
  seed: "3"
  seed: 4
optimizer:
  learning_rate: 1e-4
checkpoint:
  enable_save: yes
  save_max: 0
dat:
  path: x
"""
    found = faults(config, text)
    assert found == [
        "run.yaml:4: unknown setting 'training.stepz'. Did you mean 'steps'?",
        "run.yaml:5: training.seed needs a whole number, found the text '3'; remove the quotes",
        f"run.yaml:6: 'seed' is given twice, first at {found[2].split('first at ')[1].split(';')[0]}; remove one",
        "run.yaml:10: checkpoint.enable_save needs true or false, found 'yes'; write true",
        "run.yaml:11: checkpoint.save_max must be at least 1, found 0",
        "run.yaml:12: unknown section 'dat'. Did you mean 'data'?",
        "run.yaml:3: training.micro_batch_size 16 is larger than training.global_batch_size 8; make it smaller",
    ]
    assert found[2].split(";")[0].endswith("run.yaml:5")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "run.yaml:1: needs sections"),
        ("hello\n", "run.yaml:1: needs sections"),
        ("training: 5\n", "run.yaml:1: section 'training' needs a mapping of settings, found the value '5'"),
        ("training:\n  steps: [1]\n", "run.yaml:2: training.steps needs a single value, found a list"),
        ("training:\n  steps:\n", "run.yaml:2: training.steps needs a whole number, found no value"),
        ("training:\n  steps: true\n", "run.yaml:2: training.steps needs a whole number, found 'true'"),
        ("training:\n  steps: 1e3\n", "run.yaml:2: training.steps needs a whole number, found '1e3'; write 1000"),
        ("training:\n  steps: 12:30\n", "run.yaml:2: training.steps needs a whole number, found '12:30'"),
        ("training:\n  steps: 010\n", "run.yaml:2: training.steps needs a whole number, found '010'"),
        ("training:\n  steps: 99999999999999999999\n", "run.yaml:2: training.steps needs a whole number of at most"),
        ("training:\n  batch: fixed_globl\n", "run.yaml:2: training.batch needs one of fixed_global, per_rank"),
        ("optimizer:\n  learning_rate: .inf\n", "run.yaml:2: optimizer.learning_rate needs a finite number"),
        ("optimizer:\n  learning_rate: 0\n", "run.yaml:2: optimizer.learning_rate must be above 0, found 0.0"),
        ("model:\n  dropout: 1.0\n", "run.yaml:2: model.dropout must be below 1, found 1.0"),
        (
            "checkpoint:\n  save_interleaved_steps: 0\n",
            "run.yaml:2: checkpoint.save_interleaved_steps must be at least",
        ),
        ("checkpoint:\n  save_path: 5\n", "run.yaml:2: checkpoint.save_path needs text, found the number 5; put it"),
        ("checkpoint:\n  save_path: off\n", "run.yaml:2: checkpoint.save_path needs text, found the boolean off"),
        ("checkpoint:\n  load_path: a\n  checkpoint_path: b\n", "run.yaml:3: checkpoint.checkpoint_path names one"),
        ("checkpoint:\n  no_save_optim: true\n", "run.yaml:2: checkpoint.no_save_optim is true, but a restart needs"),
        ("checkpoint:\n  save_path: ''\n", "run.yaml:2: checkpoint.save_path is empty"),
        ("model:\n  heads: 7\n", "run.yaml:2: model.width 256 is not a multiple of model.heads 7"),
        ("job:\n  target: train.py\n", "run.yaml:2: job.target needs module:name, found 'train.py'"),
        ("job:\n  options:\n    a b: 1\n", "run.yaml:3: job.options cannot hold 'a b'"),
        ("job:\n  options: 3\n", "run.yaml:2: job.options needs a mapping"),
        ("rendezvous:\n  first_wait_s: 900\n", "run.yaml:2: rendezvous.first_wait_s 900.0 is not below"),
        ("global_batch_size: 8\n", "run.yaml:1: unknown section 'global_batch_size'. Did you mean 'training.global"),
        ("data:\n  save_path: x\n", "run.yaml:2: unknown setting 'data.save_path'. Did you mean 'checkpoint.save_pat"),
        ("? [a]\n: 1\n", "run.yaml:1: a name is needed here, found a list"),
        ("data:\n  path: 'x\n", "run.yaml:3: not valid YAML: while scanning a quoted scalar found unexpected end"),
        ("data:\n\tpath: x\n", "run.yaml:2: not valid YAML"),
        ("data: {}\n---\ndata: {}\n", "run.yaml:2: not valid YAML: expected a single document"),
        (b"data:\n  path: \xff\n", "run.yaml:2: not UTF-8 text"),
        ("a: &x [*x]\n", "run.yaml:1: unknown section 'a'"),
        ("[" * 3000, "run.yaml: not valid YAML"),
        ("#" * (1 << 21), "run.yaml: longer than"),
    ],
)
def test_each_fault_has_its_line_and_remedy(config, text, expected):
    found = faults(config, text)
    assert len(found) == 1, found
    assert found[0].startswith(expected), found


def test_a_value_out_of_range_causes_no_second_problem(config):
    # With the default of 24 in its place, micro_batch_size would look too large.
    found = faults(config, "training:\n  global_batch_size: -1\n  micro_batch_size: 100\n")
    assert len(found) == 1


@pytest.mark.parametrize("text", ["", "# nothing\n", "training:\n", "training: ~\ndata: {}\n", "\ufefftraining:\n"])
def test_files_that_say_nothing_leave_the_defaults(config, text):
    assert config(text).settings == resolve([], environ={}).settings


def test_scientific_numbers_are_numbers(config):
    text = "optimizer: {learning_rate: 1e-3, weight_decay: 5E-2, max_grad_norm: 1}\ntraining: {seed: 1_000}\n"
    settings = config(text).settings
    assert settings.optimizer.learning_rate == 1e-3
    assert settings.optimizer.weight_decay == 0.05
    assert isinstance(settings.optimizer.max_grad_norm, float)
    assert settings.training.seed == 1000


def test_options_of_a_users_job_are_free(config):
    options = config("job:\n  options: {lr: 1e-3, name: abc, deep: true, n: 4, quoted: '4'}\n").settings.job.options
    assert options == {"lr": 1e-3, "name": "abc", "deep": True, "n": 4, "quoted": "4"}


@pytest.mark.parametrize(("path", "reason"), [("nowhere.yaml", "No such file"), (".", "Is a directory"), ("", "path")])
def test_a_file_that_cannot_be_read(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        resolve(["--config", path], environ={})


def test_problems_of_all_sources_come_together(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  stepz: 1\n")
    environ = {"ELASTIC_CONFIG": str(path), "ELASTIC__TRAINING__SEDE": "1", "ELASTIC__DATA__NUM_WORKERS": "-1"}
    with pytest.raises(ConfigError) as caught:
        resolve(["--stepz", "5", "--steps", "many", "--save-path"], environ=environ)
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems] == [
        "run.yaml:2: unknown setting 'training.stepz'. Did you mean 'steps'?",
        "env ELASTIC__DATA__NUM_WORKERS: data.num_workers must be at least 0, found -1",
        "env ELASTIC__TRAINING__SEDE: unknown setting 'training.sede'. Did you mean 'ELASTIC__TRAINING__SEED'?",
        "--stepz: unknown argument. Did you mean '--steps'?",
        "--steps: training.steps needs a whole number, found 'many'",
        "--save-path: needs a value: --save-path VALUE or --save-path=VALUE",
    ]
