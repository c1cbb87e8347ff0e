"""What the orchestrator and the edge agents must agree on: messages, links, models, methods, data sets."""

PROTOCOL = 2
"""Version of the wire protocol. Both sides refuse a peer with another one."""
