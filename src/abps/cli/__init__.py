"""Commands: thin, one file each; no logic of their own."""
