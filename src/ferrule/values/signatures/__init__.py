"""Signatures: fields, types, and checks of outputs."""
