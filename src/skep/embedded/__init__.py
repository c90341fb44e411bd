"""An embedded PostgreSQL from a wheel, for trying Skep without a database.

`start()` gives any number of processes one server per data directory. A supervisor process, detached from all of them,
is the parent of PostgreSQL. File locks record who uses the server; the kernel drops them when a process dies:

    users.lock        shared: each process that uses the server; exclusive: the supervisor, after the last of them
    start.lock        exclusive: the process that attaches to the server or launches its supervisor
    supervisor.lock   exclusive: the supervisor, until it ends
    server.lock       exclusive: PostgreSQL and all its backends, by a descriptor they inherit
    leave.lock        exclusive: a process that has stopped and checks whether it was the last

    start()   users.lock shared ── start.lock ─┬─ a supervisor runs ── wait until it is ready ── URL
                                               └─ none runs ── launch one ──┘
    stop()    unlock users.lock ── the supervisor locks it after the last user ── fast shutdown ── both end

    PostgreSQL dies      the supervisor restarts it with the same data and port
    the supervisor dies  the kernel sends SIGINT to PostgreSQL, a clean stop; the next start() launches both
    everything dies      the next start() recovers the same data
"""

from skep.embedded.server import EmbeddedPostgres, running_url, start
from skep.embedded.state import default_data_dir

__all__ = ["EmbeddedPostgres", "default_data_dir", "running_url", "start"]
