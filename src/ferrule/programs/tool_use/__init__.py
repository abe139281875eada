"""Uses tools: from a model's calls to their results."""
