"""What sites and the scheduler say to each other: commands, answers, decline codes, masked sums."""
