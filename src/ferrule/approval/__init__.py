"""Questions to a person, their decisions, and policies."""
