"""`python -m gpu_rag` is the `gpu-rag` command."""

import sys

from gpu_rag.cli.main import main

sys.exit(main())
