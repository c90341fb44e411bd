"""The work behind the routes: pushes, pops and acks of many requests merged into few database calls."""
