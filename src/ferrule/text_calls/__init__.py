"""Tool calls written in plain text, in the dialects of models."""
