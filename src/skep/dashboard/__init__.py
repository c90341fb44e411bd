"""The web page of `skep serve`: plain ES modules in `static`, over the JSON API. The server only sends the files."""
