"""Messages, histories, requests and responses."""
