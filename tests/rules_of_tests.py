"""Conditions of rules that another process can import."""


def is_large(amount: int) -> bool:
    return amount > 100
