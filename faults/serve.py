"""`python -m faults.serve`: `skep serve`, after the damage that FAULTS_BROKEN names. No such switch is in Skep."""

import os
import sys

from faults.broken import damage_server
from skep.cli import main

if __name__ == "__main__":
    damage_server(os.environ.get("FAULTS_BROKEN", ""))
    sys.argv = ["skep", "serve"]
    main()
