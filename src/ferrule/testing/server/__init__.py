"""Any model of ferrule behind a real HTTP server."""
