"""Serves an agent's metrics over HTTP or HTTPS: /metrics, /livez, /readyz, /startupz.

Not the library's own server: that one has no probes, tells nobody of a port that is taken, answers every path and
method with the metrics, and cannot be told who asks.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric

from elastic.errors import UsageError
from elastic.metrics.access import Access, Guard
from elastic.metrics.fold import Metrics

PORTS_TRIED = 101
"""The wanted port and the next hundred: several agents on one machine find each their own."""

OPEN = Access()
_CLIENT_TIMEOUT_S = 10.0
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class Exporter:
    """One HTTP server in daemon threads. `stop` leaves no thread, socket or connection behind."""

    def __init__(self, metrics: Metrics, *, host: str, port: int, access: Access = OPEN) -> None:
        self._metrics, self._access = metrics, access
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Listen, on the next free port if the wanted one is taken; return the "host:port" really bound.

        With TLS "https://" comes before it.

        Raises:
            UsageError: the address is not one of this machine's, none of the ports is free, or a file is not usable.
        """
        if self._server is not None:
            raise RuntimeError("the exporter is running already")
        guard = Guard(self._access, host=self._host)
        self._server = _listen(self._metrics, guard, host=self._host, port=self._port)
        self._end, told = socket.socketpair()
        self._thread = threading.Thread(
            target=self._server.serve_until, args=(told,), name="elastic-exporter", daemon=True
        )
        self._thread.start()
        bound = self._server.server_address[1]
        address = f"[{self._host}]:{bound}" if ":" in self._host else f"{self._host}:{bound}"
        return f"https://{address}" if self._access.secure else address

    def stop(self) -> None:
        """Stop serving and cut open connections. Without effect if it does not run."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            self._end.close()
            thread.join()
            server.server_close()


def _listen(metrics: Metrics, guard: Guard, *, host: str, port: int) -> _Server:
    last = min(port + PORTS_TRIED, 65536) if port else 1
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"metrics.host {host!r} is not an address: {error}; 0.0.0.0 listens on all") from error
    for candidate in range(port, last):
        try:
            return _Server((host, candidate), metrics, guard, family)
        except OSError as error:
            if error.errno not in _TAKEN:
                text = f"metrics.host {host!r}: cannot listen there ({error.strerror}); use an address of this machine"
                raise UsageError(text) from error
    raise UsageError(f"metrics.port {port}: no free port from {port} to {last - 1} on {host}; choose another")


class _Server(HTTPServer):
    """One thread for each connection; the open ones are known, so that they can be cut."""

    request_queue_size = 16

    def __init__(self, address: tuple[str, int], metrics: Metrics, guard: Guard, family: socket.AddressFamily) -> None:
        self.address_family = family
        self.metrics, self.guard = metrics, guard
        self._open: dict[threading.Thread, socket.socket] = {}
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)
        self.socket.setblocking(False)  # who knocked and left again must not be waited for

    def serve_until(self, told: socket.socket) -> None:
        """Answer whoever comes until the other end of `told` is closed; asleep in between, unlike `serve_forever`,
        which looks up ten times a second to be able to end."""
        with told, selectors.DefaultSelector() as selector:
            selector.register(told, selectors.EVENT_READ)
            selector.register(self, selectors.EVENT_READ)
            while all(key.fileobj is not told for key, _ in selector.select()):
                self.handle_request()

    def server_bind(self) -> None:
        # Not HTTPServer's: that one asks the name service for this machine's name, which can take seconds.
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="elastic-exporter-request", daemon=True
        )
        with self._open_lock:  # Held while it starts, so that it cannot leave before it has come.
            thread.start()
            self._open[thread] = request

    def server_close(self) -> None:
        super().server_close()
        with self._open_lock:
            still_open = dict(self._open)
        for thread, request in still_open.items():
            _cut(request)
            thread.join()

    def _serve(self, request: socket.socket, client_address: object) -> None:
        try:
            request = self.guard.wrap(request)
            self._shake_hands(request)
            self.finish_request(request, client_address)
        except OSError:
            pass  # The client went away, was too slow, or we are stopping: nobody is left to tell.
        finally:
            self.shutdown_request(request)
            with self._open_lock:
                self._open.pop(threading.current_thread(), None)

    def _shake_hands(self, request: socket.socket) -> None:
        """For TLS. Done here, in the client's own thread, since a client may be slow at it."""
        if not isinstance(request, ssl.SSLSocket):
            return
        with self._open_lock:
            self._open[threading.current_thread()] = request
        request.settimeout(_CLIENT_TIMEOUT_S)
        request.do_handshake()


def _cut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # Closed by its own thread in the meantime.


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of four paths."""

    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    server_version = "elastic"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._tell_metrics()
        elif path in ("/livez", "/readyz", "/startupz"):
            self._answer_probe(path)
        else:
            self._answer_text(HTTPStatus.NOT_FOUND, "there are /metrics, /livez, /readyz and /startupz")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that could not be parsed, or whose method is neither GET nor HEAD."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._answer_text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("Allow", "GET, HEAD"))
        else:
            self._answer_text(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        """No access log: a scrape is not news."""

    def _tell_metrics(self) -> None:
        refusal = self.server.guard.judge(self.connection, self.headers.get("Authorization", ""))
        if refusal is not None:
            asks = refusal.status is HTTPStatus.UNAUTHORIZED
            headers = (("WWW-Authenticate", 'Basic realm="elastic", charset="UTF-8"'),) if asks else ()
            self._answer_text(refusal.status, refusal.text, *headers)
            return
        content_type, body = _render(self.server.metrics, self.headers.get("Accept", ""), reader=self._reader())
        self._answer(HTTPStatus.OK, content_type, body)

    def _answer_probe(self, path: str) -> None:
        """Alive: this process answers, whatever it waits for. Started: the agent is up. Ready: in a generation."""
        state = self.server.metrics.readiness()
        good = {"/livez": True, "/readyz": state.ready, "/startupz": state.started}[path]
        reason = "ok" if path == "/livez" or (good and path == "/startupz") else state.reason
        if not self.server.guard.open:
            reason = "ok" if good else "no"
        self._answer_text(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def _reader(self) -> str | None:
        """Who scrapes; all scrapers that are like Prometheus send this header, and people do not."""
        if "X-Prometheus-Scrape-Timeout-Seconds" not in self.headers:
            return None
        return f"{self.client_address[0]} {self.headers.get('User-Agent', '')[:100]}"

    def _answer_text(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), *headers)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", content_type), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@dataclass(frozen=True)
class _Scrape:
    """Stands for the library's registry in one scrape: the metrics as this reader is to see them."""

    metrics: Metrics
    reader: str | None

    def collect(self) -> Iterable[Metric]:
        return self.metrics.collect(self.reader)


def _render(metrics: Metrics, accept: str, *, reader: str | None) -> tuple[str, bytes]:
    """The content type that the client and the library agree on, and all metrics in it."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (ValueError, TypeError):  # What the library raises for a version that is no number: plain text then.
        encoder, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return content_type, encoder(_Scrape(metrics, reader))
