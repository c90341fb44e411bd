"""PostgreSQL from a wheel, for the first five minutes.

`start()` gives any number of processes one server per data directory. A supervisor process, detached from all of them,
is the parent of PostgreSQL. Who uses what is told by locks on files, which the kernel drops when a process dies:

    users.lock        shared: every process that uses the server; exclusive: the supervisor, once nobody does
    start.lock        exclusive: the process that attaches to the server or launches its supervisor
    supervisor.lock   exclusive: the supervisor, all its life
    server.lock       exclusive: PostgreSQL and all its backends, by a descriptor they inherit
    probe.lock        exclusive: a leaving process that looks whether it was the last

    start()   users.lock shared ── start.lock ─┬─ a supervisor lives ── wait until it says ready ── URL
                                               └─ none does ── launch one ──┘
    stop()    let go of users.lock ── the supervisor gets it, if we were the last ── fast shutdown ── both are gone

    PostgreSQL dies      the supervisor starts it again, on the same data and port
    the supervisor dies  the kernel sends PostgreSQL SIGINT, a clean stop; the next start() launches a new pair
    everything dies      the next start() recovers on the same data
"""

from skep.embedded.server import EmbeddedPostgres, running_url, start
from skep.embedded.state import default_data_dir

__all__ = ["EmbeddedPostgres", "default_data_dir", "running_url", "start"]
