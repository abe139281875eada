"""Runs as OpenTelemetry spans and metrics."""
