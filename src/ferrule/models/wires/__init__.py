"""The protocols of providers."""
