"""Commands: thin, one file each, with ``register(app)``; no logic of their own."""
