"""`python -m ferrule.cli.demo`."""
