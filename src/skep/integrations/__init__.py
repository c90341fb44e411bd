"""Skep in other programs' frameworks; each module needs the extra of its name."""
