"""The exporter over TLS: certificates of its own, of its clients, and new ones while it runs."""

import shutil
import socket
import ssl
import threading
from contextlib import closing, suppress
from http.client import HTTPSConnection

import pytest

from elastic.errors import UsageError
from elastic.metrics.access import Access, Guard
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics
from tests.harness.certificates import Authority

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.sign("server")


@pytest.fixture
def serve():
    started = []

    def start(access):
        exporter = Exporter(Metrics(), host="127.0.0.1", port=0, access=access)
        started.append(exporter)
        return exporter.start().removeprefix("https://")

    yield start
    for exporter in started:
        exporter.stop()


def ask(address, authority, path="/metrics", *, client=None):
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if client is not None:
        context.load_cert_chain(client.cert_file, client.key_file)
    with closing(HTTPSConnection(address, timeout=5, context=context)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_metrics_over_tls_and_nothing_in_the_clear(serve, authority, server):
    address = serve(Access(cert_file=str(server.cert_file), key_file=str(server.key_file)))
    status, body = ask(address, authority)
    assert (status, "elastic_job_active" in body) == (200, True)
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(5)
        with suppress(ConnectionResetError):
            assert b"elastic" not in plain.recv(65536)
    assert ask(address, authority, "/livez") == (200, "ok\n")


def test_with_an_authority_for_clients_only_theirs_read_and_probes_need_none(serve, authority, server, tmp_path):
    files = {"cert_file": str(server.cert_file), "key_file": str(server.key_file)}
    address = serve(Access(**files, client_ca_file=str(authority.ca_file)))
    assert ask(address, authority, client=authority.sign("prometheus", client=True))[0] == 200
    assert ask(address, authority) == (403, "a client certificate is needed\n")
    assert ask(address, authority, "/livez") == (200, "ok\n")
    stranger = Authority(tmp_path / "stranger").sign("prometheus", client=True)
    with pytest.raises(OSError):  # noqa: PT011 - ssl's own, or a reset, by which of the two sides is first
        ask(address, authority, client=stranger)
    assert ask(address, authority, "/livez") == (200, "ok\n")


def test_a_certificate_is_replaced_while_it_runs(serve, authority, server, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(server.cert_file, cert)
    shutil.copy(server.key_file, key)
    address = serve(Access(cert_file=str(cert), key_file=str(key)))
    assert ask(address, authority, "/livez")[0] == 200
    other = Authority(tmp_path / "other")
    renewed = other.sign("server")
    shutil.copy(renewed.cert_file, cert)
    assert ask(address, authority, "/livez")[0] == 200  # its key is not there yet: the old pair goes on
    shutil.copy(renewed.key_file, key)
    assert ask(address, other, "/livez")[0] == 200


def test_a_client_that_never_shakes_hands_holds_nobody_up_and_is_cut_at_the_end(serve, authority, server):
    address = serve(Access(cert_file=str(server.cert_file), key_file=str(server.key_file)))
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5):
        assert ask(address, authority, "/livez")[0] == 200
    assert threading.active_count() < 10


def test_an_encrypted_key_is_one_clear_message(authority, server, tmp_path):
    import subprocess

    locked = tmp_path / "locked.key"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:abcd", "-in", server.key_file, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(UsageError, match="cannot speak TLS"):
        Guard(Access(cert_file=str(server.cert_file), key_file=str(locked)), host="127.0.0.1")
