"""The real federation: what runs at a hospital, and the clock between hospitals."""
