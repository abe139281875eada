"""Functions as tools: schema, docs, checking of arguments, loading."""
