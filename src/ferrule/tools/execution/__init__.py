"""Running a checked call."""
