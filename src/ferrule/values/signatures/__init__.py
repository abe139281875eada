"""Signatures: their fields, types and output checks."""
