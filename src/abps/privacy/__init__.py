"""What protects patients: sums that show no summand, noise with an account, and cells too small to tell."""
