"""HTTP: the application, the table of endpoints, who may call them, and the limits."""
