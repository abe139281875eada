"""Questions of a run and the decisions on them."""
