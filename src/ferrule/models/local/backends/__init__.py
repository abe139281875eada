"""The libraries that run models in this process."""
