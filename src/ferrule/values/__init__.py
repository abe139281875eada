"""Plain values that the other packages exchange. Nothing here acts on the outside world."""
