"""Commands: thin, one file each, with ``register(app)``; no logic of their own."""

from abps.cli import bench, compare, demo, methods, report, run, theory

#: What the command line consists of, in the order of ``abps --help``.
COMMANDS = (
    demo.register,
    run.register,
    compare.register,
    report.register,
    methods.register,
    theory.register,
    bench.register,
)
