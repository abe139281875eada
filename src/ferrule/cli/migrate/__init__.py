"""What becomes of a program of DSPy or udspy here: its names, looked up in our pages about them."""
