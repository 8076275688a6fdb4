"""Rivals: published methods that abps is compared with, one file each."""
