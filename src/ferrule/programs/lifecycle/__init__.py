"""Programs as tools, in batches, saved, loaded and resumed."""
