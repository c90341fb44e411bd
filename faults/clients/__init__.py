"""The clients of a round, each a process of its own: producers and consumers of every kind."""
