"""The driver, which performs a program's acts: calls of models and tools, questions to people."""
