"""Skep's own HTTP API, and the dashboard's."""
