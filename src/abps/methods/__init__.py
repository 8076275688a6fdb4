"""Methods: one file each, a frozen configuration and pure functions over rows."""
