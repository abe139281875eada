"""The protocols of chat front ends: encode a run's events for AG-UI and for Vercel's AI SDK, and read their requests."""
