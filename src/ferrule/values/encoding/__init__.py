"""Values to JSON and back, and lenient reading of JSON that a model wrote."""
