"""Tool calls and their results."""
