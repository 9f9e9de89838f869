"""Finding a job by its name, and saying what is wrong with the name."""

import sys
import types

import pytest

from elastic.errors import UsageError
from elastic.job import Job, load_job

JOB = Job(model=lambda world: None, dataset=list, loss=lambda model, batch: None, optimizer=lambda model: None)


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("a_users_module")
    made.job = JOB
    made.make = lambda settings: settings
    made.number = 3
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_job_is_taken_as_it_is(module):
    assert load_job("a_users_module:job", None) is JOB


def test_a_function_is_given_the_settings(module):
    assert load_job("a_users_module:make", JOB) is JOB


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("a_users_module", r"named as module:name, .* got 'a_users_module'"),
        (":job", r"named as module:name"),
        ("a_users_module:", r"named as module:name"),
        ("a_users_module:a.b", r"named as module:name"),
        ("a_users_module:jobs", r"has no 'jobs'; did you mean 'job'\?"),
        ("a_users_module:zzz", r"has no 'zzz'; its jobs: job"),
        ("a_users_module:number", r"is of type int; expected an elastic.Job"),
        ("a_users_module:make", r"returned of type NoneType; expected"),
        ("no_such_module:job", r"there is no module 'no_such_module' .*PYTHONPATH"),
        ("jobs.no_such_module:job", r"there is no module 'jobs.no_such_module'"),
    ],
)
def test_a_bad_target_is_explained(module, target, message):
    with pytest.raises(UsageError, match=message):
        load_job(target, None)


def test_a_class_is_not_called(module):
    module.Thing = Job
    with pytest.raises(UsageError, match="is the class Job; expected"):
        load_job("a_users_module:Thing", None)


def test_what_the_jobs_module_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="'needs_more' imports 'a_package_that_is_not_there', which is not installed"):
        load_job("needs_more:job", None)
