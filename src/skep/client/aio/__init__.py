"""The asynchronous face, and the source of the other one: `skep.client.sync` is generated from these files.

Only `runtime.py` is written twice: what asyncio does here, threads do there.
"""
