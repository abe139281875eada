"""From a model's calls to their results."""
