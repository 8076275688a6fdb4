"""A site's own part in a study."""
