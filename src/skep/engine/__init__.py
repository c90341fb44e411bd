"""The database side: the SQL is the product."""
