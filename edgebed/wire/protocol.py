"""The version of what crosses the wire. Imports nobody, so the package `edgebed` can hand it on at no cost. Pure."""

PROTOCOL = 3
"""Version of the wire protocol. Both sides refuse a peer with another one."""
