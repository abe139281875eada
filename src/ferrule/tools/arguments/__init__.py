"""Check and repair the arguments of calls."""
