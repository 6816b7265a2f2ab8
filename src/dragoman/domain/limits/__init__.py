"""Quotas: pure objects, one per concern, that decide who may use how much of what is shared."""
