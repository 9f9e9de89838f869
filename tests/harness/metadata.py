"""A cloud's metadata address on loopback: what AWS and GCP answer there, with a switch for the notice."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

ACTION = {"action": "terminate", "time": "2026-01-02T03:04:05Z"}


class Metadata:
    """A context manager. `noticed` counts the answers that told of the notice, `requests` all by path."""

    def __init__(self) -> None:
        self.noticed = 0
        self.requests: list[str] = []
        self.tokens = 0
        self.changed = threading.Condition()
        self.preempted = False
        self.broken = False
        self._ending = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self._ending = True
            self.changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def notice(self) -> None:
        """From now on this machine is to go."""
        with self.changed:
            self.preempted = True
            self.changed.notify_all()

    def forget_tokens(self) -> None:
        """Tokens given out so far are refused."""
        self.tokens += 1

    def wait_for_requests(self, count: int, *, limit_s: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, limit_s), self.requests

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
        """Status, body and etag."""
        place = urlsplit(path)
        with self.changed:
            self.requests.append(f"{method} {place.path}")
            self.changed.notify_all()
        if self.broken:
            return 500, "out of order", ""
        if place.path.startswith("/latest/"):
            return (*self._aws(method, place.path, headers), "")
        return self._gcp(parse_qs(place.query), headers)

    def _aws(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if path == "/latest/api/token":
            known = method == "PUT" and headers.get("x-aws-ec2-metadata-token-ttl-seconds")
            return (200, f"token-{self.tokens}") if known else (400, "")
        if headers.get("x-aws-ec2-metadata-token") != f"token-{self.tokens}":
            return 401, ""
        if path != "/latest/meta-data/spot/instance-action" or not self.preempted:
            return 404, "<html>not found</html>"
        self.noticed += 1
        return 200, json.dumps(ACTION)

    def _gcp(self, query: dict[str, list[str]], headers: dict[str, str]) -> tuple[int, str, str]:
        if headers.get("metadata-flavor") != "Google":
            return 403, "", ""
        if "wait_for_change" in query:
            with self.changed:
                self.changed.wait_for(
                    lambda: self._ending or query["last_etag"] != [self._etag], float(query["timeout_sec"][0])
                )
        self.noticed += self.preempted
        return 200, "TRUE" if self.preempted else "FALSE", self._etag

    @property
    def _etag(self) -> str:
        return f"etag {self.preempted}"


def _handler_for(metadata: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, etag = metadata.answer(self.command, self.path, headers)
            try:
                self.send_response(status)
                self.send_header("ETag", etag)
                self.end_headers()
                self.wfile.write(body.encode())
            except BrokenPipeError:
                return  # whoever asked has hung up

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
