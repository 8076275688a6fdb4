"""Local web pages: the analyst's path from a table to a model, and a hospital's console.

The pages hold no logic of their own: every step is a command of ``abps`` that runs as a process, and each
page shows it.
"""
