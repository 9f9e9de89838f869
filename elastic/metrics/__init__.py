"""Metrics: definitions, events folded into values, and the exporter of an agent."""
