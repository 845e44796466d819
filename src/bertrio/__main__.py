"""`python -m bertrio`: the command line."""

import sys

from bertrio.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
