"""Two launches of one run meet under its keys: while one is at work the other gets no seat and ends."""

from elastic.errors import ExitCode, RunMismatch
from elastic.rendezvous.launched import same


def test_who_does_not_say_is_of_any_launch():
    assert same("", "x")
    assert same("x", "")
    assert same("x", "x")
    assert not same("x", "y")


def test_a_node_of_another_launch_is_refused_and_nobody_is_disturbed(make_job):
    job = make_job(max_nodes=4, ttl_s=60)
    a, b = (job.add(node, launch="one") for node in ("a", "b"))
    job.expect([a, b], size=2)
    other = job.add("other", launch="two")
    job.until(lambda: other.ended, what="it is refused")
    assert isinstance(other.ended, RunMismatch)
    assert other.ended.exit_code == ExitCode.USAGE
    assert "of launch 'two', and 'one' is at work" in str(other.ended)
    assert (a.generation, b.generation, a.regroups) == (1, 1, [])
    c = job.add("c", launch="one")
    job.expect([a, b, c], size=3, after=1)


def test_of_two_launches_at_the_same_moment_the_leader_s_trains(make_job):
    job = make_job(min_nodes=1, max_nodes=4, ttl_s=60)
    a, b, c = job.add("a", launch="one"), job.add("b", launch="two"), job.add("c", launch="one")
    job.expect([a, c], size=2)
    job.until(lambda: b.ended, what="the other is refused")
    assert isinstance(b.ended, RunMismatch)


def test_the_run_goes_on_under_its_keys_and_who_was_asleep_is_refused(make_job):
    job = make_job(max_nodes=4, ttl_s=60)
    a = job.add("a", launch="one")
    job.expect([a], size=1)
    a.stop()
    job.agents.remove(a)
    a.store.close()
    b = job.add("b", launch="two")
    job.expect([b], size=1, after=1)
    assert b.generation == 2, "generations go on growing"
    sleeper = job.add("sleeper", launch="one")
    job.until(lambda: sleeper.ended, what="it is refused")
    assert isinstance(sleeper.ended, RunMismatch)
    assert b.regroups == []
