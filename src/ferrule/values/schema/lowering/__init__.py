"""Schemas rewritten into the subset that a provider accepts."""
