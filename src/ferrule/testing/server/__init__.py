"""A real HTTP server for any model of ferrule."""
