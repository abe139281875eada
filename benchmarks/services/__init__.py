"""The same chat service in each library, written as its documentation says: see `service.py`."""
