"""Commands: thin, one file each, with ``register(app)``; no logic of their own."""

from abps.cli import adapt, bench, cohort, compare, demo, drift, methods, partition, report, run, site, theory

#: What the command line consists of, in the order of ``abps --help``.
COMMANDS = (
    demo.register,
    run.register,
    compare.register,
    report.register,
    methods.register,
    cohort.register,
    partition.register,
    drift.register,
    adapt.register,
    theory.register,
    bench.register,
    site.register,
)
