"""Tries to lose a message: a private Skep under load, faults by a seeded plan, and a checker of the results.

plan ── the rounds and faults of a seed
world ── PostgreSQL, proxies, two servers, producers and consumers; faults are injected here
history ── the calls of each client and their results, on disk before the client continues
checker ── rules over the histories and the final state
report ── JSON and a table of all runs
"""
