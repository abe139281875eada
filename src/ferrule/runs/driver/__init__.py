"""The driver: it performs a program's acts."""
