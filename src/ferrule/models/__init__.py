"""Language models, and the protocols they speak."""
