"""The engine of the embedded model, in a process of its own."""
