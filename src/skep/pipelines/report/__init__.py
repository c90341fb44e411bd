"""The report of an analysis: one self-contained page with sentences, charts and tables."""
