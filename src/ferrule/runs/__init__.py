"""Execution of runs: drivers, journal, stores, observers."""
