"""The report in a real browser: no error, no request, readable at phone width, light and dark; and of a long run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from itertools import chain

import pytest

from elastic.observe.chronicle import chronicle
from elastic.observe.page import Account, page
from tests.harness import story

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

MEASURE = """<!doctype html><iframe src="report.html" style="width:{width}px;height:3000px;border:0"></iframe>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(e => e.open = true);
  const sizes = [...page.querySelectorAll("p, dd, dt, td, th, a, summary, li, span")].filter(e => e.textContent.trim())
    .map(e => parseFloat(getComputedStyle(e).fontSize));
  const wanted = [...page.querySelectorAll("a, summary, [tabindex]")];
  const reached = wanted.filter(e => {{ e.focus(); return e.tabIndex >= 0 && page.activeElement === e; }});
  document.title = JSON.stringify([root.scrollWidth, Math.min(...sizes), wanted.length, reached.length,
    getComputedStyle(page.body).backgroundColor]);
  console.info("it was measured");
}}</script>"""


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page at a width and in a scheme; gives what was measured, and what the browser said."""
    account = Account(verdict="every sample was used once", exact=True, numbers=(("samples", 480),))
    settings = {"training": {"steps": 20, "a_very_long_value": "x" * 300}}
    text = page(chronicle(story.finished()), account=account, settings=settings, made_s=200.0)
    (tmp_path / "report.html").write_text(text)

    def run(width, *, dark):
        (tmp_path / "measure.html").write_text(MEASURE.format(width=width))
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *("--disable-breakpad", "--disable-crash-reporter"),
            *("--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom"),
            (tmp_path / "measure.html").as_uri(),
        ]
        out, err = _run(command)
        title = re.search(r"<title>\[(\d+),([\d.]+),(\d+),(\d+),\"(.*?)\"\]</title>", out)
        assert title, out[-2000:]
        width_px, text_px, wanted, reached = (float(value) for value in title.groups()[:4])
        return width_px, text_px, wanted, reached, title[5], err

    return run


def _run(command):
    """The browser with all its helpers, which may outlive it by a moment: they are one process group."""
    browser = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = browser.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    assert browser.returncode == 0, err[-2000:]
    return out, err


@pytest.mark.parametrize("width", [320, 360, 1200])
def test_no_part_is_wider_than_the_screen_and_no_text_small(opened, width):
    width_px, text_px, wanted, reached, _, said = opened(width, dark=False)
    assert width_px <= width
    assert text_px >= 13
    assert wanted == reached > 10, "everything that does something can be reached by keyboard"
    assert said.count("CONSOLE") == 1, "the page has nothing to say, beside our own word that it was measured"


def test_light_and_dark(opened):
    assert opened(360, dark=False)[4] == "rgb(255, 255, 255)"
    assert opened(360, dark=True)[4] == "rgb(20, 23, 26)"


def test_a_run_of_a_million_steps_is_a_page_of_less_than_2_mb():
    def steps():
        for iteration in range(1, 1_000_001):
            yield from story.step(iteration, "a", at_s=3.0 + iteration, loss=1.0 / iteration)
            if iteration % 100 == 0:
                yield story.saved(iteration, at_s=3.0 + iteration)
            if iteration % 10_000 == 0:
                generation = 1 + iteration // 10_000
                yield from story.world("a", at_s=3.0 + iteration, generation=generation)
                yield from story.begun("a", at_s=3.0 + iteration, generation=generation, iteration=iteration)

    told = chronicle(chain(story.world("a", at_s=0.0), story.begun("a", at_s=0.0), steps()))
    assert told.counts["steps"] == 1_000_000
    text = page(told, account=Account(verdict="none", exact=None), settings={}, made_s=0.0)
    assert len(text.encode()) < 2_000_000
