"""Lists in reasons are whole where they are short."""

import pytest

from elastic.rendezvous.wording import listed


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (1, "n0"),
        (9, "n0, n1, n2, n3, n4, n5, n6, n7, n8"),
        (4000, "n0, n1, n2, n3, n4, n5, n6, n7 and 3992 more"),
    ],
)
def test_listed(count, text):
    assert listed(f"n{number}" for number in range(count)) == text
