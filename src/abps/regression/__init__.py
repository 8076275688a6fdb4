"""Effects with intervals from rows that stay where they are: regression by sums over hospitals."""
