"""JSON Schema: its nodes, its checks, and schemas in words."""
