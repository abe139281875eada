"""`AutoLM`, with the task that it reads from a request, and examples for schemas."""
