"""Reading prompts and making up answers."""
