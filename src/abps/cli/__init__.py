"""Commands: thin, one file each, with ``register(app)``; no logic of their own."""

from abps.cli import bench, methods, run, theory

#: What the command line consists of, in the order of ``abps --help``.
COMMANDS = (run.register, methods.register, theory.register, bench.register)
