"""Local web pages: the analyst's path from a table to a model, and a hospital's console."""
