"""Federations made from a formula."""
