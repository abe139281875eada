"""Drivers, journal, events: the floor that acts."""
