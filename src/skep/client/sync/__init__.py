"""The synchronous client, generated from `skep.client.aio` by `make format`; only `runtime.py` is written by hand."""
