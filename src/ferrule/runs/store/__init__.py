"""Stores that keep runs."""
