"""Where settings come from: precedence, origins, arguments of other scripts, and the round trip through JSON."""

import enum
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.config.load import from_plain, resolve, to_plain
from elastic.config.model import BatchMode, Settings
from elastic.config.schema import ALIASES, FIELDS, OPTIONS, FieldSpec
from elastic.errors import ConfigError

SETTABLE = sorted(key for key in FIELDS if key != OPTIONS)
# One of these values would break a rule between settings whatever is drawn for the others.
FIXED = {
    "tracking.to": "wandb",
    "checkpoint.load_balanced": False,
    "checkpoint.no_save_optim": False,
    "job.target": "own.job:make",
}


def value_of(plain: Settings, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(plain, section), name)


def values_for(spec: FieldSpec) -> st.SearchStrategy:
    """Values that the setting may have, and that no rule between settings forbids beside the defaults."""
    rule = spec.rule
    if spec.key in FIXED:
        return st.just(FIXED[spec.key])
    if spec.key in (
        "training.micro_batch_size",
        "model.heads",
        "rendezvous.first_wait_s",
        "rendezvous.late_wait_s",
        "rendezvous.holders_wait_s",
    ):
        return st.just(spec.kind(2))
    if spec.key in ("training.global_batch_size", "model.width", "rendezvous.join_timeout_s"):
        return st.integers(5, 10**6).map(lambda n: spec.kind(n * 40))
    if spec.kind is bool:
        return st.booleans()
    if issubclass(spec.kind, enum.Enum):
        return st.sampled_from(list(spec.kind))
    if spec.kind is int:
        return st.integers(int(rule.least or 0), int(min(rule.most or 2**63 - 1, 2**63 - 1)))
    if spec.kind is float:
        low = rule.least if rule.least is not None else (rule.above or 0.0) + 1e-6
        return st.floats(low, min(rule.most or 1e12, 0.999 if rule.below else 1e12))
    return st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1).filter(
        lambda text: text.strip() and not text.startswith("--")
    )


def written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def sources_of(key: str, value: object, directory: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Arguments and environment that set one setting, by the origin to expect."""
    text = written(value)
    file = directory / "one.yaml"
    section, name = key.split(".")
    file.write_text(f"{section}:\n  {name}: {json.dumps(text) if isinstance(value, str) else text}\n")
    dashed = f"--{section}.{name.replace('_', '-')}"
    found = {
        f"{file}:2": (["--config", str(file)], {}),
        f"env {FIELDS[key].env}": ([], {FIELDS[key].env: text}),
        f"--{key}": ([f"--{key}", text], {}),
        f"{key}=": ([f"{key}={text}"], {}),
        dashed: ([f"{dashed}={text}"], {}),
    }
    for alias in (name for name, full in ALIASES.items() if full == key):
        found[alias] = ([alias, text], {})
    return found


@pytest.mark.parametrize("key", SETTABLE)
def test_every_setting_can_be_set_from_every_source(key, tmp_path):
    @given(value=values_for(FIELDS[key]))
    @settings(max_examples=5, deadline=None)
    def check(value):
        for origin, (argv, environ) in sources_of(key, value, tmp_path).items():
            resolved = resolve(argv, environ=environ)
            assert value_of(resolved.settings, key) == value
            assert type(value_of(resolved.settings, key)) is type(value)
            assert resolved.origins[key] == origin
            assert {name for name, where in resolved.origins.items() if where != "default"} == {key}

    check()


def test_the_last_source_wins(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("training: {steps: 1, seed: 1, micro_batch_size: 1}\njob:\n  options: {a: 1, b: 1}\n")
    environ = {
        "ELASTIC_CONFIG": str(file),
        "ELASTIC__TRAINING__STEPS": "2",
        "ELASTIC__TRAINING__SEED": "2",
        "ELASTIC__JOB__OPTIONS__B": "2",
        "ELASTIC_GENERATION": "7",  # one underscore: not a setting
    }
    resolved = resolve(["--steps", "9", "--training.steps=3", "--job.options.c", "text"], environ=environ)
    training = resolved.settings.training
    assert (training.steps, training.seed, training.micro_batch_size, training.global_batch_size) == (3, 2, 1, 24)
    assert resolved.settings.job.options == {"a": 1, "b": 2, "c": "text"}
    where = {key: origin for key, origin in resolved.origins.items() if origin != "default"}
    assert where == {
        "training.steps": "--training.steps",
        "training.seed": "env ELASTIC__TRAINING__SEED",
        "training.micro_batch_size": f"{file}:1",
        "job.options.a": f"{file}:3",
        "job.options.b": "env ELASTIC__JOB__OPTIONS__B",
        "job.options.c": "--job.options.c",
    }


def test_the_command_line_names_the_file_before_the_environment_does(tmp_path):
    (tmp_path / "a.yaml").write_text("training: {steps: 1}\n")
    (tmp_path / "b.yaml").write_text("training: {steps: 2}\n")
    environ = {"ELASTIC_CONFIG": str(tmp_path / "a.yaml")}
    assert resolve([], environ=environ).settings.training.steps == 1
    assert resolve([f"--config={tmp_path / 'b.yaml'}"], environ=environ).settings.training.steps == 2


def test_arguments_of_another_script_are_left_alone():
    argv = ["--data", "mine", "--lr", "0.1", "--training.steps", "7", "--config", "my.json", "x=1", "--model.kind=gpt"]
    resolved = resolve(argv, environ={}, strict=False)
    assert resolved.settings.training.steps == 7
    assert resolved.settings.data.path == "auto"
    assert resolved.rest == ("--data", "mine", "--lr", "0.1", "--config", "my.json", "x=1", "--model.kind=gpt")


def test_a_wrong_value_is_a_problem_even_among_another_scripts_arguments():
    with pytest.raises(ConfigError, match=r"--training\.steps: training\.steps needs a whole number"):
        resolve(["--training.steps", "x"], environ={}, strict=False)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--training.step", "4"], "--training.step: unknown argument. Did you mean '--training.steps'?"),
        (["--save-pth", "x"], "--save-pth: unknown argument. Did you mean '--save-path'?"),
        (["training.step=4"], "training.step=: unknown setting 'training.step'. Did you mean 'training.steps'?"),
        (["stray"], "stray: unexpected argument; settings are given as --section.field VALUE"),
        (["--steps", "--job", "a:b"], "--steps: needs a value: --steps VALUE or --steps=VALUE"),
        (["--checkpoint.enable_save", "no"], "--checkpoint.enable_save: checkpoint.enable_save needs true or false"),
        (["--training.steps", "-1"], "--training.steps: training.steps must be at least 1 steps, found -1"),
    ],
)
def test_a_wrong_argument_is_one_problem(argv, expected):
    with pytest.raises(ConfigError) as caught:
        resolve(argv, environ={})
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(expected)


def test_a_conflict_names_what_the_user_set():
    with pytest.raises(ConfigError, match=r"^--training\.global_batch_size: training\.micro_batch_size 4 is larger"):
        resolve(["--training.global_batch_size", "2"], environ={})


def test_bits_that_shall_not_depend_on_the_world_size_need_a_batch_that_does_not():
    with pytest.raises(ConfigError, match=r"^--training\.numerics: training\.numerics is exact, but"):
        resolve(["--training.numerics", "exact", "--training.batch", "per_rank"], environ={})


def test_settings_survive_json():
    given_settings = resolve(
        ["--steps", "5", "--data.order", "sequential", "--job.options.a", "1.5", "--job.options.b", "true"], environ={}
    ).settings
    plain = json.loads(json.dumps(to_plain(given_settings)))
    assert plain["data"]["order"] == "sequential"
    assert plain["job"]["options"] == {"a": 1.5, "b": True}
    assert from_plain(plain) == given_settings
    assert from_plain({}) == Settings()
    assert from_plain(plain).training.batch is BatchMode.FIXED_GLOBAL


def test_saved_settings_of_another_version_are_named():
    plain = {"training": {"steps": True, "future": 1, "seed": 3.5}, "nothing": 4}
    with pytest.raises(ConfigError) as caught:
        from_plain(plain)
    assert len(caught.value.problems) == 4
    assert "saved settings: training.future is not a setting of this version" in str(caught.value)


def test_no_setting_lost_its_meaning():
    assert all(spec.rule.meaning for spec in FIELDS.values())
    assert set(ALIASES.values()) <= set(FIELDS)
