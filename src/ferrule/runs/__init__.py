"""Execution of runs: the driver, the journal, stores, observers."""
