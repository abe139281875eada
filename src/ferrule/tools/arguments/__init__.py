"""Checking and repairing the arguments of a call."""
