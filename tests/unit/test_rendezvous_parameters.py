"""What torchrun passes on, as options: endpoints in every notation, torch's option names, mistakes with a remedy."""

from types import SimpleNamespace

import pytest

from elastic.errors import ConfigError, UsageError
from elastic.rendezvous.parameters import options_from, parse_endpoints


def options(endpoint="", *, environ=None, defaults=None, **config):
    parameters = SimpleNamespace(
        endpoint=endpoint, run_id="job", min_nodes=1, max_nodes=4, local_addr=None, config={"timeout": 900} | config
    )
    return options_from(parameters, environ=environ or {}, defaults=defaults)


def test_nothing_given():
    found = options()
    assert (found.endpoints, found.secure, found.prefix) == (("127.0.0.1:2379",), False, "/elastic/jobs")
    assert (found.job_id, found.min_nodes, found.max_nodes) == ("job", 1, 4)


def test_the_option_beats_the_environment():
    environ = {"ETCD_ENDPOINTS": "http://e1:1,http://e2:2"}
    assert options(environ=environ).endpoints == ("e1:1", "e2:2")
    assert options("other", environ=environ).endpoints == ("other:2379",)


@pytest.mark.parametrize(
    ("text", "endpoints", "secure"),
    [
        ("host", ("host:2379",), False),
        ("host:1", ("host:1",), False),
        ("a:1;b|c:3, d", ("a:1", "b:2379", "c:3", "d:2379"), False),
        ("https://a:1/;b", ("a:1", "b:2379"), True),
        ("[::1]", ("[::1]:2379",), False),
        ("http://[fe80::1%eth0]:7", ("[fe80::1%eth0]:7",), False),
    ],
)
def test_endpoints(text, endpoints, secure):
    assert parse_endpoints(text) == (endpoints, secure)


@pytest.mark.parametrize("text", ["http://me:secret@e:1", "me@secret:1"])
def test_an_endpoint_with_a_login_is_refused_without_showing_it(text):
    with pytest.raises(UsageError, match="user and password_file") as caught:
        parse_endpoints(text)
    assert "secret" not in str(caught.value)


def test_a_password_as_an_option_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match="did you mean password_file") as caught:
        options("e", password="secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("::1", r"write \[::1\]:2379"),
        ("host:0", "expected host, host:port"),
        ("host:99999", "expected host"),
        ("ftp://host", "expected host"),
        ("http://a;https://b", "mixes http and https"),
    ],
)
def test_endpoints_that_are_none(text, hint):
    with pytest.raises(UsageError, match=hint):
        parse_endpoints(text)


def test_the_option_names_of_torch():
    found = options(
        protocol="https",
        cacert="/ca",
        cert="/cert",
        ssl_cert_key="/key",
        etcd_prefix="/p",
        timeout="77",
        last_call_timeout="2.5",
        read_timeout="9",
        heartbeat_timeout="5",
    )
    assert found.secure
    assert (found.ca_file, found.cert_file, found.key_file, found.prefix) == ("/ca", "/cert", "/key", "/p")
    assert (found.join_timeout_s, found.first_wait_s, found.call_timeout_s) == (77, 2.5, 9)


def test_conf_beats_defaults_and_torchruns_own_timeout_is_not_the_users():
    found = options(defaults={"join_timeout_s": 5.0, "ttl_s": 9}, ttl_s="3")
    assert (found.join_timeout_s, found.ttl_s) == (5.0, 3)


def test_all_problems_at_once_with_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        options("a b", ttl="3", late_wait_s="soon", first_wait_s="-1", protocol="gopher")
    message = str(caught.value)
    assert "--rdzv-endpoint: 'a b' is not an endpoint" in message
    assert "--rdzv-conf ttl: there is no such option; did you mean ttl_s?" in message
    assert "--rdzv-conf late_wait_s: 'soon' is not a number" in message
    assert "--rdzv-conf first_wait_s: '-1' is less than 0" in message
    assert "'gopher' is neither http nor https" in message


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_time_without_end_is_no_number(value):
    with pytest.raises(ConfigError, match=f"call_timeout_s: '{value}' is not a number"):
        options(call_timeout_s=value)
