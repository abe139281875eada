"""`OfflineLM` and `AutoLM`, with the task that they read from a request, and examples for schemas."""
