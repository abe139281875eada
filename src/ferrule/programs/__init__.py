"""What decides: Predict, ChainOfThought, ReAct, Module."""
