"""Who may read an exporter's metrics, where that is not everybody. TLS itself is tried in the integration tests."""

import base64
from contextlib import closing
from http.client import HTTPConnection

import pytest

from elastic.clock import ManualClock
from elastic.errors import UsageError
from elastic.metrics.access import Access, Guard
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics

SECRET = "s3cret:with:colons"


@pytest.fixture
def users(tmp_path):
    file = tmp_path / "users"
    file.write_text(f"# who may\nprometheus:{SECRET}\nother:x\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def address(users):
    exporter = Exporter(Metrics(clock=ManualClock()), host="127.0.0.1", port=0, access=Access(users_file=str(users)))
    yield exporter.start()
    exporter.stop()


def ask(address, path="/metrics", *, user=None, raw=None):
    headers = {} if user is None else {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
    headers |= {} if raw is None else {"Authorization": raw}
    with closing(HTTPConnection(address, timeout=5)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers.get("WWW-Authenticate"), response.read().decode()


def test_only_who_knows_a_password_reads_the_metrics(address):
    status, asks, body = ask(address)
    assert (status, asks, body) == (
        401,
        'Basic realm="elastic", charset="UTF-8"',
        "a user and a password are needed\n",
    )
    assert ask(address, user=f"prometheus:{SECRET}")[0] == 200
    assert ask(address, user="other:x")[0] == 200
    for wrong in ("prometheus:", "prometheus:x", f"prometheus:{SECRET} ", f"other:{SECRET}", ":", "", "# who may"):
        assert ask(address, user=wrong)[0] == 401, wrong
    for raw in ("Basic", "Basic ???", "Bearer abc", "Basic ÿ".encode("latin-1").decode("latin-1")):
        assert ask(address, raw=raw)[0] == 401, raw


def test_probes_are_open_and_tell_no_reasons(address):
    assert ask(address, "/livez")[::2] == (200, "ok\n")
    assert ask(address, "/readyz")[::2] == (503, "no\n")
    assert SECRET not in ask(address, user=f"prometheus:{SECRET}")[2]


def test_passwords_may_change_while_it_runs_and_a_broken_file_lets_nobody_in(address, users, caplog):
    users.write_text("prometheus:new\n")
    assert (ask(address, user=f"prometheus:{SECRET}")[0], ask(address, user="prometheus:new")[0]) == (401, 200)
    users.chmod(0o644)
    assert ask(address, user="prometheus:new")[0] == 503
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [("a:b\n", 0o640, "chmod 600"), ("nobody\n", 0o600, "has no users"), (":b\n", 0o600, "has no users")],
)
def test_a_file_of_users_that_is_none_is_one_clear_message(users, text, mode, told):
    users.write_text(text)
    users.chmod(mode)
    with pytest.raises(UsageError, match=told):
        Guard(Access(users_file=str(users)), host="127.0.0.1")


def test_passwords_never_go_over_a_network_in_the_clear(users):
    for host in ("0.0.0.0", "10.0.0.1", "node1", "::"):
        with pytest.raises(UsageError, match="in the clear"):
            Guard(Access(users_file=str(users)), host=host)
    for host in ("127.0.0.1", "::1", "localhost"):
        Guard(Access(users_file=str(users)), host=host)


def test_files_that_are_missing_or_make_no_sense_are_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        Guard(Access(users_file=str(tmp_path / "nothing")), host="127.0.0.1")
    with pytest.raises(UsageError, match="cannot speak TLS"):
        Guard(Access(cert_file=str(tmp_path / "nothing")), host="127.0.0.1")
    with pytest.raises(UsageError, match=r"need metrics\.tls_cert"):
        Guard(Access(client_ca_file="ca.pem"), host="127.0.0.1")
