"""Limits and quotas: pure objects, one per resource, that decide who may use how much of it."""
