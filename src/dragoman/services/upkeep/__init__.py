"""The cluster: presence, takeover of dead instances, renewal and removal of keys."""
