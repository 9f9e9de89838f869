"""Prometheus, Alertmanager and somebody who is paged: real servers on loopback, for one test."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from elastic.local.etcd import free_port
from tests.harness.until import until


def wait(test: Callable[[], bool], *, what: str, limit_s: float = 60.0) -> None:
    """Until it is true, which none of these servers tells by itself. Raises AssertionError."""
    until(test, what=what, limit_s=limit_s, look_s=0.1)


def ask(url: str) -> Any:
    """The JSON there; None while nobody answers yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None  # It is still starting.
        raise AssertionError(f"{url}: {error.read().decode()}") from error
    except OSError:
        return None


class Server:
    """A program that serves HTTP on a free port of loopback, and its log."""

    def __init__(self, directory: Path, *, names: tuple[str, ...], options: Callable[[int], list[str]]) -> None:
        """`names`: of the program, the first that is installed; `options`: for a port."""
        binary = next((found for name in names if (found := shutil.which(name))), None)
        if binary is None:
            pytest.skip(f"{names[0]} is not installed")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = directory / f"{names[0]}.log"
        with self.log.open("w") as out:
            self._process = subprocess.Popen([binary, *options(port)], stdout=out, stderr=out)
        try:
            wait(self._ready, what=f"{names[0]} is ready")
        except BaseException:
            self.close()
            raise

    def _ready(self) -> bool:
        ended = self._process.poll()
        assert ended is None, f"it ended with {ended}: {self.log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=30)


class Pager:
    """Receives what Alertmanager sends to a webhook."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                pager.alerts += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Quiet."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Alertmanager(Server):
    """Passes every alert on to one pager, at once."""

    def __init__(self, directory: Path, *, pager: Pager) -> None:
        config = {
            "route": {
                "receiver": "pager",
                "group_wait": "1s",
                "group_interval": "5s",
                "group_by": ["alertname", "job"],
            },
            "receivers": [{"name": "pager", "webhook_configs": [{"url": pager.url}]}],
        }
        file = directory / "alertmanager.yml"
        file.write_text(json.dumps(config))
        super().__init__(
            directory,
            names=("alertmanager", "prometheus-alertmanager"),
            options=lambda port: [
                *(f"--config.file={file}", f"--storage.path={directory / 'alertmanager'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="),
            ],
        )


class Prometheus(Server):
    """Scrapes and evaluates each second; finds its targets in a file, its rules in ours, if any."""

    def __init__(
        self,
        directory: Path,
        *,
        targets: Path,
        rules: Path | None = None,
        alertmanager: Alertmanager | None = None,
        access: Mapping[str, Any] | None = None,
    ) -> None:
        """`access`: what else its scrape job says, of certificates and passwords."""
        places = [] if alertmanager is None else [alertmanager.url.removeprefix("http://")]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [] if rules is None else [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": places}]}]},
            "scrape_configs": [
                {
                    "job_name": "elastic",
                    "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
                    **(access or {}),
                }
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))
        super().__init__(
            directory,
            names=("prometheus",),
            options=lambda port: [
                *(f"--config.file={file}", f"--storage.tsdb.path={directory / 'prometheus'}"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        found = ask(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return [] if found is None else found["data"]["result"]

    def span(self, expression: str, *, begin_s: float, end_s: float) -> list[dict[str, Any]]:
        """The series that a query gives from one Unix time to another, each second."""
        asked = {"query": expression, "start": begin_s, "end": end_s, "step": 1}
        found = ask(f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}")
        return [] if found is None else found["data"]["result"]

    def number(self, expression: str) -> float | None:
        """The value of a query that gives one series; None where there is none."""
        found = self.query(expression)
        assert len(found) < 2, f"{expression}: {found}"
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> list[dict[str, Any]]:
        """All rules, as they went last."""
        found = ask(f"{self.url}/api/v1/rules")
        return [] if found is None else [rule for group in found["data"]["groups"] for rule in group["rules"]]
