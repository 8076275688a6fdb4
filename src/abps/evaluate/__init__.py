"""How good models are, how sure that is, and what may be said about it."""
