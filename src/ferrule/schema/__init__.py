"""JSON Schema: reading schemas, checking values, and describing schemas in words."""
