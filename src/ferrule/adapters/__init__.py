"""Render signatures and inputs as prompts; parse answers into outputs."""
