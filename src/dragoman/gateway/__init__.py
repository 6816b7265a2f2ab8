"""The gateway's transport: one port for WebSockets and HTTP, and nothing of what is said over it."""

from dragoman.gateway.connection import Connection, Endpoint, EndpointFactory
from dragoman.gateway.handshake import Authorizer, OriginAllowList, Reject, Request
from dragoman.gateway.limits import Counters, Limits
from dragoman.gateway.listener import Listener, Route

__all__ = [
    "Authorizer",
    "Connection",
    "Counters",
    "Endpoint",
    "EndpointFactory",
    "Limits",
    "Listener",
    "OriginAllowList",
    "Reject",
    "Request",
    "Route",
]
