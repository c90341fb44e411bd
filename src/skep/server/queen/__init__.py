"""Queen's protocol. Nothing outside of this folder knows it, except the table that mounts its routes."""
