"""The demo: `python -m ferrule.cli.demo`."""
