"""Run checked calls, for runs and for direct callers."""
