"""What protects patients: masked sums, noise with a privacy ledger, and minimum cell sizes."""
