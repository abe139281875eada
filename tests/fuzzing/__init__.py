"""Inputs by chance and by malice, in large numbers: `make fuzz`.

A fault found here gets a test of its own where it belongs.
"""
