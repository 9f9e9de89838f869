"""Observe: a run seen through its records: status, words for events, time by state, recoveries, the report."""
