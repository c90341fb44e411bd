"""`python -m faults.serve`: run `skep serve`, with the defect that FAULTS_BROKEN names. Skep has no such option."""

import os
import sys

from faults.broken import damage_server
from skep.cli import main

if __name__ == "__main__":
    damage_server(os.environ.get("FAULTS_BROKEN", ""))
    sys.argv = ["skep", "serve"]
    main()
