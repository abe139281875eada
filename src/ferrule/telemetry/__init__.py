"""Runs as spans, metrics, log lines and prices."""
