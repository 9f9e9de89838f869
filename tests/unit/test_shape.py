"""The shape of the code: who may import whom, what loads without torch, how long things may be.

Each rule is also shown to find a tree that breaks it: a check that cannot fail would prove nothing.
"""

from pathlib import Path

import pytest

from tests.harness import shape

ROOT = Path(__file__).parents[2]
EVERYTHING = ("elastic", "jobs", "tests", "deploy", "docker")


@pytest.fixture
def tree(tmp_path):
    """Makes a small source tree of the given files below elastic/."""

    def make(**files: str) -> Path:
        for name, text in {"__init__": "", **files}.items():
            path = tmp_path / "elastic" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.parent.name != "elastic":
                (path.parent / "__init__.py").touch()
        return tmp_path

    return make


def test_imports_point_down():
    assert shape.layering(ROOT) == []


def test_libraries_stay_where_they_belong():
    assert shape.libraries(ROOT) == []


def test_no_import_cycles():
    assert shape.cycles(ROOT) == []


def test_no_module_hides_a_library():
    assert shape.hiding(ROOT) == []


def test_files_and_functions_are_short():
    assert shape.sizes(ROOT, *EVERYTHING) == []


def test_time_is_an_argument_and_nothing_pickles():
    assert shape.forbidden(ROOT, "elastic", "jobs") == []


def test_light_modules_load_without_torch():
    assert shape.heavy(ROOT) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"errors": "import elastic.loop"}, "errors may not import loop"),
        ({"plan__in__batch": "def f():\n    from elastic.checkpoint import layout"}, "plan may not import checkpoint"),
        ({"data__in__a": "from elastic.metrics.fold import Metrics"}, "data may not import metrics"),
        ({"data__in__a": "from elastic import session"}, "data may not import session"),
        ({"data__in__a": "from .. import session"}, "data may not import session"),
        ({"data__in__a": "from ..rendezvous.kv import X"}, "data may not import rendezvous"),
        ({"helper": ""}, "no layer names 'helper'"),
    ],
)
def test_an_upward_or_sideways_import_is_found(tree, files, expected):
    found = shape.layering(tree(**files))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"data__in__a": "import yaml"}, "only config.yaml_file may import yaml"),
        ({"session": "from etcd3 import client"}, "only rendezvous.etcd may import etcd3"),
        ({"plan__in__order": "import numpy as np"}, "plan may import the standard library only, not numpy"),
    ],
)
def test_a_library_in_the_wrong_place_is_found(tree, files, expected):
    found = shape.libraries(tree(**files))
    assert len(found) == 1
    assert expected in found[0]


def test_a_cycle_is_found(tree):
    files = {"plan__in__a": "from elastic.plan import b", "plan__in__b": "from elastic.plan.c import x"}
    root = tree(**files, plan__in__c="from elastic.plan.a import y")
    (found,) = shape.cycles(root)
    assert {"plan.a", "plan.b", "plan.c"} == set(found.split(" imports "))


def test_a_hidden_library_is_found(tree):
    assert shape.hiding(tree(queue="", torch="", session="")) == [
        "elastic/queue hides the library queue",
        "elastic/torch hides the library torch",
    ]


def test_long_things_are_found(tree):
    body = "def f():\n" + "    pass\n" * 60
    root = tree(short="def f():\n" + "    pass\n" * 59, long=body, file="x = 1\n" * 351, limit="x = 1\n" * 350)
    assert shape.sizes(root, "elastic") == [
        "elastic/file.py: 351 lines, the most is 350",
        "elastic/long.py:1: f has 61 lines, the most is 60",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nnow = t.time",
        "from time import sleep",
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.save({}, 'x')",
        "from torch import load",
        "import torch.distributed as dist\ndist.all_gather_object([], 1)",
        "from torch.distributed import broadcast_object_list",
    ],
)
def test_a_forbidden_use_is_found(tree, text):
    assert shape.forbidden(tree(session=text), "elastic")


@pytest.mark.parametrize(
    "text", ["import time\ntime.monotonic()", "'''no time.sleep( here'''", "def f(clock):\n    clock.sleep(1)"]
)
def test_an_innocent_use_is_not_found(tree, text):
    assert shape.forbidden(tree(session=text), "elastic") == []


def test_the_clock_may_read_the_clock(tree):
    assert shape.forbidden(tree(clock="import time\ntime.sleep(1)\ntime.time()"), "elastic") == []


def test_a_light_module_that_loads_torch_is_found(tree):
    root = tree(plan__in__batch="import torch", plan__in__order="", session="import torch")
    (root / "torch.py").touch()  # Stands for the real one, which takes seconds to load.
    assert shape.heavy(root) == ["elastic.plan.batch loads torch"]
