from support.cluster import cluster

__all__ = ["cluster"]
