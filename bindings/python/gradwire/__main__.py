"""`python -m gradwire` is the command `gradwire`."""

import sys

from .cli import main

sys.exit(main())
