"""What a hospital agrees to and with which keys: proposals, decisions, policy, its own file, membership."""
