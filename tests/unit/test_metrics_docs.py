"""docs/metrics.md says what the definitions say."""

from pathlib import Path

from elastic.metrics.reference import metrics_table

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_metric_is_documented_as_it_is():
    assert metrics_table() in DOCS.read_text(), "docs/metrics.md is out of date: put in `elastic docs metrics`"
