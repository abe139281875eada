"""Signatures and values to requests, responses to values."""
