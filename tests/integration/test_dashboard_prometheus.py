"""Every query of the dashboard, asked of a real Prometheus that scrapes an exporter through a kill: none is empty."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.events import CheckpointSaved, WorkerStayed
from elastic.local.etcd import free_port
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics
from tests.harness import story
from tests.unit.test_dashboard import EXPRESSIONS

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


class Prometheus:
    """A server on loopback that scrapes one target each second."""

    def __init__(self, directory, *, target):
        binary = shutil.which("prometheus")
        if binary is None:
            pytest.skip("prometheus is not installed")
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "elastic", "static_configs": [{"targets": [target]}]}],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [
                *(binary, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def ask(self, expression):
        """The series that a query gives now; none while it does not answer yet."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []  # It is still starting.
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except OSError:
            return []

    def scraped(self):
        """How many scrapes there are."""
        found = self.ask("count_over_time(up[10m])")
        return int(found[0]["value"][1]) if found else 0

    def close(self):
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()


def wait(test: Callable[[], bool], *, what: str, limit_s: float = 60.0) -> None:
    until_s = SYSTEM_CLOCK.monotonic_s() + limit_s
    while not test():
        assert SYSTEM_CLOCK.monotonic_s() < until_s, f"{what} did not happen within {limit_s:.0f} s"
        SYSTEM_CLOCK.sleep(0.1)


def test_no_panel_is_empty_after_a_kill(tmp_path):
    metrics = Metrics()
    exporter = Exporter(metrics, host="127.0.0.1", port=free_port())
    prometheus = Prometheus(tmp_path, target=exporter.start())
    try:
        run = [each for each in story.finished() if each.node == "a"]
        for each in run:
            if each.time_s <= 110:
                metrics.apply(each)
        before = prometheus.scraped()
        wait(lambda: prometheus.scraped() >= before + 3, what="three scrapes before the kill")
        for each in run:
            if each.time_s > 110:
                metrics.apply(each)
        saved = CheckpointSaved(iteration=20, consumed_samples=480, bytes=1, seconds=0.5, interval_s=3.0, stall_s=0.1)
        metrics.apply(story.record(saved, at_s=129.0, rank=0))
        metrics.apply(story.record(WorkerStayed(worker_rank=0, pid=10), at_s=129.0, generation=2))
        after = prometheus.scraped()
        wait(lambda: prometheus.scraped() >= after + 3, what="three scrapes after the kill")
        empty = []
        for title, expression in EXPRESSIONS:
            asked = expression.replace("$__rate_interval", "1m").replace("$job", "elastic").replace(":15s]", ":1s]")
            if all(series["value"][1] == "NaN" for series in prometheus.ask(asked)):
                empty.append(f"{title}: {asked}")
        assert not empty
    finally:
        prometheus.close()
        exporter.stop()
