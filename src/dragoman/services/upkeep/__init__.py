"""Keeping the cluster in order: presence, inboxes, burials, clean-up."""
