"""Split answers into fields, whole or streamed."""
