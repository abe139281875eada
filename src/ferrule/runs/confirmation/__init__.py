"""Questions of a run, and who decides them."""
