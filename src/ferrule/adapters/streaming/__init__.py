"""Streamed answers, field by field."""
