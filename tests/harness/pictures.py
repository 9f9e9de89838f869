"""Pictures of the documentation, drawn from a real run: `make pictures`. About two minutes.

Three nodes train, one is killed, another joins; meanwhile the status and the screen of `top` are taken, and in the end
the report in a browser and the dashboard's panels as a real Prometheus answers them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from elastic.cli import main as elastic
from elastic.cli.console import columns
from elastic.cli.runs import events_of, goal_samples
from elastic.cli.top_command import looker
from elastic.clock import SYSTEM_CLOCK
from elastic.events import AgentStarted
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.follow import Follower
from elastic.observe.screen import screen
from elastic.observe.top_screen import TopApp
from elastic.observe.watching import Watched
from tests.harness.board import draw_board
from tests.harness.prometheus import Prometheus

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
STEPS = 200
_WEB_FONT = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_COLOURS = 96


def main() -> None:
    """Run the job and take all pictures."""
    work = Path(tempfile.mkdtemp(prefix="elastic-pictures-"))
    PICTURES.mkdir(exist_ok=True)
    targets = work / "targets.json"
    targets.write_text("[]")
    environ = {
        "ELASTIC__TRAINING__STEPS": str(STEPS),
        "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "20",
        "ELASTIC__METRICS__PORT": "19600",
    }
    with EtcdServer(work / "etcd") as etcd, closing(Prometheus(work, targets=targets)) as prometheus:
        spec = ClusterSpec(directory=work, etcd_endpoint=etcd.endpoint, environ=environ)
        with Cluster(spec) as run:
            begin_s = play(run, targets)
            take_terminal(run.save_path)
            for name in ("node1", "node3", "node4"):
                assert run.wait_exit(name, limit_s=300) == 0
            end_s = SYSTEM_CLOCK.wall_s()
            (work / "board.html").write_text(draw_board(prometheus, begin_s=begin_s, end_s=end_s))
        report = work / "report.html"
        assert elastic(["report", str(run.save_path), "-o", str(report)]) == 0
    shoot(report, "report.png", width=1000, height=1500)
    shoot(report, "report-phone-dark.png", width=400, height=1500, dark=True)
    shoot(work / "board.html", "dashboard.png", width=1200, height=2000)
    print("\n".join(f"{path.name}: {path.stat().st_size / 1000:.0f} kB" for path in sorted(PICTURES.iterdir())))


def play(run: Cluster, targets: Path) -> float:
    """Three nodes, a kill, a fourth node. When the first step was done, in Unix time."""
    for name in ("node1", "node2", "node3"):
        run.start(name)
    began_s = run.wait_step(1, world_size=3, limit_s=300).time_s
    tell_targets(run, targets)
    scraped_until = run.wait_step(90, world_size=3).event.iteration
    run.nodes["node2"].kill()
    two = run.wait_step(scraped_until + 20, world_size=2)
    run.start("node4")
    three = run.wait_step(two.event.iteration, world_size=3, after=two.generation)
    tell_targets(run, targets)
    run.wait_step(three.event.iteration + 30, world_size=3)
    return began_s


def tell_targets(run: Cluster, targets: Path) -> None:
    """Prometheus' file discovery, from what the agents said."""
    found = {r.node: r.event.exporter for r in run.follower.records if isinstance(r.event, AgentStarted)}
    draft = targets.with_suffix(".draft")
    draft.write_text(json.dumps([{"targets": sorted(found.values())}]))
    draft.replace(targets)


def take_terminal(save_path: Path) -> None:
    """What `elastic status` and `elastic top` show now."""
    with Follower(events_of(str(save_path)), few_steps=True) as follower:
        look = looker(str(save_path), follower, clock=SYSTEM_CLOCK)
        seen = look()
        console = Console(record=True, width=110, file=(PICTURES / ".console").open("w"))
        console.print(Text(f"$ elastic status {save_path.name}", style="bold"))
        console.print(Text(columns(screen(seen.status))))
        write_svg("status.svg", console.export_svg(title="elastic status"))
        (PICTURES / ".console").unlink()
        write_svg("top.svg", asyncio.run(screenshot(seen)))
    assert goal_samples(str(save_path)) is not None


async def screenshot(seen: Watched) -> str:
    """The screen of `elastic top`, without a terminal."""
    app = TopApp(lambda: seen, interval_s=3600)
    async with app.run_test(size=(110, 44)) as pilot:
        await pilot.pause()
        return app.export_screenshot(title="elastic top")


def write_svg(name: str, text: str) -> None:
    """Without fonts from the network: a page must open offline."""
    (PICTURES / name).write_text(_WEB_FONT.sub("", text).replace("Fira Code", "monospace"))


def shoot(page: Path, name: str, *, width: int, height: int, dark: bool = False) -> None:
    """A page as a browser shows it, in few colours."""
    out = page.with_name(name)
    command = [
        *(
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
        ),
        *("--disable-breakpad", "--disable-crash-reporter", f"--user-data-dir={page.parent / 'profile'}"),
        *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={width},{height}"),
        *(f"--screenshot={out}", page.as_uri()),
    ]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        browser.wait(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    Image.open(out).convert("RGB").quantize(_COLOURS).save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    main()
