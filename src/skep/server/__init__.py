"""The HTTP face: Queen's protocol and Skep's own routes, over any number of processes."""
