"""The report: its parts add up, it opens without anything else, and nothing that a worker said can act in it."""

import re
from html.parser import HTMLParser

import pytest

from elastic import events
from elastic.cli import main
from elastic.events import Cause
from elastic.observe.chronicle import chronicle
from elastic.observe.curve import Curve
from elastic.observe.page import Account, page
from tests.harness import story

NO_ACCOUNT = Account(verdict="none", exact=None)


def written(records, *, account=NO_ACCOUNT, settings=None):
    return page(chronicle(records, goal_samples=480), account=account, settings=settings or {}, made_s=200.0)


class Seen(HTMLParser):
    """All elements of a page, with their attributes; those that are closed must have been opened."""

    VOID = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.stack, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_where_the_time_went_adds_up_to_wall_time():
    told = chronicle(story.finished())
    assert sum(told.spent_s.values()) == pytest.approx(told.end_s - told.begin_s)
    # Steps 9 and 10 were done twice: 9 as the first step after the fault, 10 in training.
    assert told.spent_s["steps done again"] == pytest.approx(0.9)
    assert told.spent_s["waiting for saves"] == pytest.approx(0.2)
    assert told.spent_s["restoring"] == pytest.approx(2.0)
    assert told.goodput == pytest.approx(told.spent_s["training"] / 29.5)


def test_silence_and_a_pause_between_two_starts_are_no_training():
    again = [story.agent("a", at_s=1129.5), *story.world("a", at_s=1130.0, generation=3)]
    told = chronicle([*story.finished(), *again])
    assert told.spent_s["not running"] == pytest.approx(1000.5)
    late = chronicle([*story.with_a_kill(), *story.step(21, "a", "b", at_s=628.5, generation=2)])
    assert late.spent_s["silent"] == pytest.approx(500.0)


def test_a_recovery_stage_by_stage():
    start, fault = chronicle(story.finished()).incidents
    assert (start.cause, start.world_size, fault.cause, fault.world_size) == ("start", 3, "peer_lost", 2)
    assert (fault.begin_s, fault.path, fault.lost_steps) == (113.5, "refork", 2)
    lengths = {stage.name: round(stage.stop_s - stage.start_s, 3) for stage in fault.stages}
    assert lengths == {"agree": 0.5, "start workers": 0.2, "form the group": 1.0, "restore": 1.0, "first step": 1.3}
    assert sum(lengths.values()) == pytest.approx(fault.seconds) == 4.0
    assert start.arrived == ()
    assert fault.arrived == (("memory", 24_600_000, pytest.approx(0.06)),), "of both workers"


def test_a_fault_during_a_recovery_is_one_incident_and_the_last_words_of_a_generation_are_none():
    run = [each for each in story.with_a_kill() if each.time_s < 115.5]
    run += story.step(11, "a", "b", "c", at_s=113.55, generation=1)
    run += story.step(12, "a", "b", "c", at_s=115.6, generation=1)
    run.sort(key=lambda each: each.time_s)
    run.append(story.record(events.RoundOpened(cause=Cause.WORKER_EXIT, reason="again"), at_s=115.7, generation=2))
    run += story.world("a", at_s=116.0, generation=3, cause=Cause.WORKER_EXIT)
    begun = story.begun("a", at_s=116.5, generation=3, iteration=8, tier="disk")
    run += [each for each in begun if not isinstance(each.event, events.WorkerStarted)]
    run += story.step(9, "a", at_s=119.0, generation=3)
    _, fault = chronicle(run).incidents
    assert (fault.generation, fault.world_size, fault.seconds) == (3, 1, pytest.approx(5.5))
    assert [stage.name for stage in fault.stages] == ["agree", "form the group", "restore", "first step"]
    assert fault.stages[0].stop_s == pytest.approx(2.5), "agreeing lasts until the world that made the step"
    assert [tier for tier, _, _ in fault.arrived] == ["disk"], "what came in the generation between is not in its state"


def test_how_long_a_paused_job_rested_is_no_part_of_a_recovery():
    run = [each for each in story.with_a_kill() if each.time_s <= 113.0]
    run.append(story.record(events.RoundOpened(cause=Cause.PAUSED, reason="paused (ann)"), at_s=113.2))
    run += story.world("a", "b", at_s=9000.0, generation=2, cause=Cause.PAUSED)
    run += story.begun("a", "b", at_s=9000.2, generation=2, iteration=10, tier="disk")
    run += story.step(11, "a", "b", at_s=9003.5, generation=2)
    told = chronicle(run)
    resumed = told.incidents[-1]
    assert (resumed.cause, resumed.seconds) == ("paused", pytest.approx(3.5))
    assert told.spent_s["paused"] == pytest.approx(8886.8)


def test_a_curve_of_any_length_stays_small_and_keeps_its_extremes():
    curve = Curve(most=100)
    for x in range(100_000):
        curve.add(x, 50.0 if x == 77_777 else x / 100_000)
    curve.add(100_000, float("nan"))
    assert 50 <= len(curve.buckets) <= 100
    assert sum(each.count for each in curve.buckets) == 100_000
    assert len({each.count for each in curve.buckets[:-1]}) == 1, "every part of the run is drawn as finely"
    assert max(each.high for each in curve.buckets) == 50.0
    assert curve.buckets[0].low == 0.0
    assert all(one.stop < other.start for one, other in zip(curve.buckets, curve.buckets[1:], strict=False))
    curve.back_to(50_000)
    assert curve.buckets[-1].start <= 50_000


def test_what_is_done_again_is_drawn_once():
    told = chronicle(story.finished())
    assert [each.stop for each in told.loss] == [24.0 * step for step in range(1, 21)]
    assert told.worlds == ((0, 3), (192, 2))


def test_the_page_holds_every_part():
    account = Account(verdict="every sample was used once", exact=True, numbers=(("samples", 480),))
    text = written(story.finished(), account=account, settings={"training": {"steps": 20}})
    seen = Seen(text)
    shown = "".join(seen.text)
    for words in (
        "step 20, 480 samples of 480",
        "every sample was used once",
        "peer_lost, 4.00 s by refork, 2 steps again, then 2 workers",
        "restore 1.00 s",
        "State: 24.6 MB from memory (410.0 MB/s a worker)",
        "training.steps",
        "elastic 1, torch 2",
        "2 saves, newest first; 1 copies in memory",
    ):
        assert words in shown, words
    titles = re.findall(r"<title>(.*?)</title>", text)
    assert {"step 5 saved", "3 -&gt; 2 (node_lost)", "peer_lost: 4.00 s by refork, 2 steps again"} <= set(titles)


def test_the_page_opens_offline_and_can_do_nothing():
    seen = Seen(written(story.finished()))
    tags = {tag for tag, _ in seen.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "base"}
    names = {name for _, attributes in seen.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert not names & {"src", "srcset", "action", "data"}
    assert all(a["href"].startswith("#") for tag, a in seen.elements if tag == "a")
    ids = {attributes["id"] for _, attributes in seen.elements if "id" in attributes}
    assert all(a["href"][1:] in ids for tag, a in seen.elements if tag == "a")
    assert "default-src 'none'" in str(seen.elements)


def test_charts_are_told_in_words_and_what_scrolls_can_be_reached_by_keyboard():
    seen = Seen(written(story.finished()))
    charts = [attributes for tag, attributes in seen.elements if tag == "svg"]
    assert len(charts) == 5
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    regions = [attributes for _, attributes in seen.elements if attributes.get("class") == "table"]
    assert regions
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_text_of_workers_cannot_act():
    evil = "</title></svg><script>alert(1)</script>\" onload='x' \x1b[31m\u202e" + "y" * 5000
    run = [
        *story.finished(),
        story.record(events.Notice(text=evil), at_s=130.0),
        story.record(events.CheckpointFailed(iteration=21, reason=evil), at_s=130.0, rank=0),
        story.record(events.RoundOpened(cause=Cause.WORKER_EXIT, reason=evil), at_s=130.0, generation=2),
        story.record(events.Evaluated(iteration=1, consumed_samples=24, values=((evil, 1.0),)), at_s=130.0, rank=0),
        *story.world("a", at_s=131.0, generation=3),
        *story.begun("a", at_s=131.0, generation=3, iteration=20),
        *story.step(21, "a", at_s=140.0, generation=3),
        story.record(events.Recovered(cause=Cause.START, path=evil, seconds=1, lost_steps=0), at_s=140.1, generation=3),
    ]
    bad = Account(verdict="no", exact=False, problems=(evil,))
    text = written(run, account=bad, settings={evil: {evil: evil}})
    seen = Seen(text)
    assert "alert(1)" in text
    assert "<script" not in text
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert not set(text) & {"\x1b", "\u202e"}
    assert "y" * 2500 not in text


def test_the_size_does_not_grow_with_the_run():
    def run(steps):
        yield from story.world("a", at_s=0.0)
        yield from story.begun("a", at_s=0.0)
        for iteration in range(1, steps + 1):
            yield from story.step(iteration, "a", at_s=3.0 + iteration, loss=1.0 / iteration)
            if iteration % 3 == 0:
                yield story.saved(iteration, at_s=3.0 + iteration)

    sizes = [len(written(run(steps))) for steps in (4_000, 16_000)]
    assert sizes[1] < 1.1 * sizes[0] < 300_000


def _luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_is_readable_in_light_and_dark():
    """The contrast that WCAG 2 asks of text, and of lines and bars."""
    css = re.search(r"<style>(.*?)</style>", written(story.finished()), re.DOTALL)[1]
    light, dark = (
        dict(re.findall(r"--(\w+):(#\w{6})\b", block)) for block in re.findall(r":root\{(.*?)\}", css, re.DOTALL)
    )
    for colours in (light, dark):
        back = _luminance(colours["back"])
        for name, least in {**dict.fromkeys(("text", "soft", "line", "good", "bad"), 4.5), "checkpoint": 2.5}.items():
            other = _luminance(colours[name])
            contrast = (max(back, other) + 0.05) / (min(back, other) + 0.05)
            assert contrast >= least, (name, contrast)


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = main(argv)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def test_the_command(run, tmp_path):
    story.write(tmp_path / "run", story.finished())
    target = tmp_path / "page.html"
    code, out, err = run("report", str(tmp_path / "run"), "-o", str(target), "--no-audit")
    assert (code, err) == (0, "")
    assert out == f"{target}: {target.stat().st_size / 1e6:.2f} MB\n"
    assert "left out (--no-audit)" in target.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("place", ["away/x.html", "file/x.html", "run"])
def test_a_page_that_cannot_be_written_leaves_the_old_one(run, tmp_path, place):
    story.write(tmp_path / "run", story.finished())
    (tmp_path / "file").write_text("the old one")
    code, out, err = run("report", str(tmp_path / "run"), "--no-audit", "-o", str(tmp_path / place))
    assert (tmp_path / "file").read_text() == "the old one"
    assert (code, out) == (64, "")
    assert "cannot be written" in err


def test_a_run_without_an_account_has_a_report_all_the_same(run, tmp_path):
    story.write(tmp_path / "run", story.finished())
    code, _, _ = run("report", str(tmp_path / "run"), "-o", str(tmp_path / "r.html"))
    assert code == 0
    assert "there is none:" in (tmp_path / "r.html").read_text()
