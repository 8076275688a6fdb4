"""What a site keeps: its state, its log, and the proofs that the log is complete."""
