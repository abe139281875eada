"""A run's events for chat pages: AG-UI, and Vercel's AI SDK; and what their pages send."""
