"""Methods: one file each, a frozen configuration with ``init`` and ``apply``."""
