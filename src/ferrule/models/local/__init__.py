"""Models in this process, and the constraints that keep their calls valid."""
