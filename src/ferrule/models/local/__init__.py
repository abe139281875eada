"""Models in this process: transformers and llama.cpp, and the constraint that keeps their calls valid."""
