"""A model that answers without a provider."""
