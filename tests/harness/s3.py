"""An S3 server over real HTTP on loopback, in this process, that fails the requests that a test chooses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "bench"
SECRET = "test-secret-access-key"


class _Quiet(WSGIRequestHandler):
    def log(self, *args, **options):
        """Requests are kept by the server; nobody reads lines about them."""


@dataclass
class Trouble:
    """What goes wrong from request number `at` on, for `times` requests that `concern` it."""

    kind: str
    """refuse (503, not done), lose (done, 500 is answered), cut (half of the body comes), wait (done, after a while)"""
    at: int = 0
    times: int = 1
    concern: Callable[[dict[str, Any]], bool] = lambda environ: True
    pause_s: float = 1.0
    fired: int = 0
    seen: int = 0


@dataclass
class S3Server:
    """A server with one bucket. A context manager."""

    trouble: Trouble | None = None
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.client().create_bucket(Bucket=BUCKET)
        self.requests.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environ(self) -> dict[str, str]:
        """What a client of it needs in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test-key",
            aws_secret_access_key=SECRET,
        )

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    @contextlib.contextmanager
    def with_trouble(self, trouble: Trouble) -> Iterator[Trouble]:
        self.trouble = trouble
        try:
            yield trouble
        finally:
            self.trouble = None

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        with self._lock:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            kind = self._chosen(environ)
        if kind == "refuse":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if kind == "wait":
            assert self.trouble is not None
            threading.Event().wait(self.trouble.pause_s)
        if kind == "lose":
            b"".join(self._app(environ, lambda *_: None))
            start_response("500 Internal Error", [("Content-Length", "0")])
            return [b""]
        if kind == "cut":
            body = b"".join(self._app(environ, start_response))
            return [body[: len(body) // 2]]
        return self._app(environ, start_response)

    def _chosen(self, environ: dict[str, Any]) -> str | None:
        trouble = self.trouble
        if trouble is None or not trouble.concern(environ):
            return None
        trouble.seen += 1
        if not trouble.at < trouble.seen <= trouble.at + trouble.times:
            return None
        trouble.fired += 1
        return trouble.kind
