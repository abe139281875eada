"""Functions as tools: their schemas, docs, argument checks and loading."""
