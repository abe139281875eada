"""Write values as JSON and read them back, and read JSON that a model wrote with mistakes."""
