"""Which interface bears an address."""

import pytest

from elastic.launch.interface import interface_of


def test_loopback_bears_its_address():
    assert interface_of("127.0.0.1") == "lo"


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77", "some.host.invalid"])
def test_nobody_bears_it(address):
    assert interface_of(address) is None
