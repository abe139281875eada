"""Programs, which decide what to ask and to call: Predict, ChainOfThought, ReAct, Module."""
