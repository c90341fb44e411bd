"""The asynchronous client. `skep.client.sync` is generated from these files.

Only `runtime.py` is written twice: with asyncio here, with threads there.
"""
