"""Rewrite schemas into the subset that a provider accepts."""
