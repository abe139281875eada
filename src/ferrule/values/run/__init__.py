"""What a run is made of: acts, events and outcomes."""
