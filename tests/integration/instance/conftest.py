from support.in_process import open_instance

__all__ = ["open_instance"]
