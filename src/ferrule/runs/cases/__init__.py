"""Cases for calls: what a run should do, as conditions on the calls that it made."""
