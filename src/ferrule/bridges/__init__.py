"""Live connections to other systems."""
