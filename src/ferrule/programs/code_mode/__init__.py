"""Code that calls tools: the model writes a snippet, and each call in it is a call of the run."""
