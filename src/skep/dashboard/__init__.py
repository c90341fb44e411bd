"""The web dashboard of `skep serve`: ES modules in `static` that use the JSON API. The server only serves the files."""
