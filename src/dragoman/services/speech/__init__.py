"""The way of a spoken sentence."""
