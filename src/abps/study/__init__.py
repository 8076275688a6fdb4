"""Many runs: planned, computed here or on a cluster, stored whole, known by what decides them."""
