"""The parts of a run: acts, events and outcomes."""
