"""The table of metrics for the documentation, made from the definitions."""

from __future__ import annotations

from elastic.metrics.definition import Definition
from elastic.metrics.definitions import DEFINITIONS


def metrics_table() -> str:
    """A Markdown table with one row for each metric."""
    rows = ["| Metric | Type | Labels | From | Over agents | Meaning |", "| --- | --- | --- | --- | --- | --- |"]
    rows.extend(_row(definition) for definition in DEFINITIONS)
    return "\n".join(rows) + "\n"


def _row(definition: Definition) -> str:
    labels = "<br>".join(
        f"`{name}`: {', '.join(values) if values else 'one value'}" for name, values in definition.labels
    )
    source = "leader" if definition.job else "each agent"
    return f"| `{definition.name}` | {definition.kind} | {labels} | {source} | {definition.over} | {definition.help} |"
