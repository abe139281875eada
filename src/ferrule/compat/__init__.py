"""Facades: programs written for DSPy or udspy run on ferrule after one changed import.

Each facade adapts ferrule's public names to the behaviour of its library in a few lines. It has no
machinery of its own.
"""
