"""`OfflineLM`, and what it shares with `AutoLM`: reading what a request declares, and examples for schemas."""
