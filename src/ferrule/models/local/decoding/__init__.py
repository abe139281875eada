"""Decoding within a budget of tokens: how an answer that was begun is ended."""
