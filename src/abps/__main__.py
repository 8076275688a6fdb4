"""``python -m abps`` is ``abps``."""

from abps.cli.main import main

main()
