"""The clients of a round, each in its own process: producers and consumers of every kind."""
