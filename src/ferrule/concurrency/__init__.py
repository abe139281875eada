"""Worker threads, background event loops, and deadlines."""
