"""Models in this process, through transformers and llama.cpp, and the constraints that keep their calls valid."""
