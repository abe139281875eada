"""Asking a model for outputs."""
