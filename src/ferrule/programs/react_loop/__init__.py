"""The loop of `ReAct`."""
