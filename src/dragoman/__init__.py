"""Dragoman: the real-time control plane of live-translated conversation."""

__version__ = "0.1.0"
