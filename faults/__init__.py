"""Tries to lose a message: a private Skep under load, faults by a seeded plan, and a checker over what all were told.

plan ── the same seed is the same rounds and faults
world ── PostgreSQL, proxies, two servers, producers and consumers; a fault does its harm here
history ── what each client invoked and was told, on disk before it goes on
checker ── rules over histories and the state at the end; none may be broken
report ── JSON and a table of all runs so far
"""
