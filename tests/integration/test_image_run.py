"""The image, run: as its own user and as a random one, without rights, its root read-only, its init as PID 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.errors import ExitCode
from tests.harness.containers import IMAGE, engine, require

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

LOCKED = (
    "--network",
    "none",
    "--read-only",
    "--tmpfs",
    "/tmp",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
)
USERS = ("10001:10001", "4242:0")


@pytest.fixture(scope="module")
def image() -> str:
    """Before any test looks around: podman keeps a lock file in /dev/shm from its first command on."""
    require(IMAGE)
    return IMAGE


def run(image: str, *command: str, user: str, options: tuple[str, ...] = ()) -> str:
    return engine("podman", "run", "--rm", *LOCKED, "--user", user, *options, image, *command)


@pytest.mark.parametrize("user", USERS)
def test_it_trains_alone_without_any_right(image: str, user: str) -> None:
    said = run(
        image,
        *("python", "elastic/worker.py", "--steps", "3", "--model.layers", "1", "--model.width", "32"),
        *("--optimizer.warmup_samples", "0", "--checkpoint.save_interleaved_steps", "2"),
        user=user,
    )
    again = run(
        image,
        "python",
        "-c",
        "import os; s = open('/proc/self/status').read(); print(os.getuid(), s.split('CapEff:')[1].split()[0])",
        user=user,
    )
    assert again.split() == [user.partition(":")[0], "0" * 16]
    assert "Traceback" not in said


def test_every_module_of_the_package_and_of_the_job_has_its_bytecode(image: str) -> None:
    """Without it each start of a node would compile all it imports: its root cannot be written to."""
    script = (
        "import sys, torch, elastic.launch.entry, jobs.pretrain_lm, importlib.util as u, os\n"
        "files = [m.__spec__.origin for m in list(sys.modules.values()) if getattr(m, '__spec__', None)]\n"
        "sources = [f for f in files if f and f.endswith('.py') and not f.startswith('<')]\n"
        "print(len(sources), [f for f in sources if not os.path.exists(u.cache_from_source(f))])\n"
    )
    count, _, missing = run(image, "python", "-c", script, user=USERS[0]).partition(" ")
    assert int(count) > 500
    assert missing.strip() == "[]"


def test_what_would_build_or_fetch_is_not_in_it(image: str) -> None:
    script = "import shutil; print([n for n in ('gcc', 'cc', 'make', 'curl', 'wget') if shutil.which(n)])"
    assert run(image, "python", "-c", script, user=USERS[0]).strip() == "[]"


def test_a_mistake_in_the_settings_ends_it_with_the_documented_code(image: str) -> None:
    name = "elastic-image-test"
    engine("podman", "rm", "-f", name, check=False)
    try:
        engine(
            "podman", "run", "--name", name, *LOCKED, image, "python", "elastic/worker.py", "--stepz", "3", check=False
        )
        state = json.loads(engine("podman", "container", "inspect", name))[0]
        assert state["State"]["ExitCode"] == ExitCode.USAGE
        assert state["Path"] == "dumb-init"
    finally:
        engine("podman", "rm", "-f", name, check=False)


def test_the_health_check_is_in_it(image: str) -> None:
    config = json.loads(engine("podman", "image", "inspect", image))[0]
    assert "/livez" in json.dumps(config["Healthcheck"]["Test"])
    assert config["Config"]["User"] == USERS[0]
    assert Path("/app") == Path(config["Config"]["WorkingDir"])
