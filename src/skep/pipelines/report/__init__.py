"""The report of an analysis: one page that needs nothing else. Sentences first, then charts, then tables."""
