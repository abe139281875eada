"""The protocols of chat front ends: a run's events as AG-UI and as the AI SDK's message stream, and their requests."""
