"""The supervisor's process: `python -m skep.embedded <data directory> <launch as JSON>`."""

import logging
import sys

from skep.embedded.state import StateDir
from skep.embedded.supervisor import Launch, detach

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
detach(StateDir.at(sys.argv[1]), Launch.from_json(sys.argv[2]))
