"""The helper of one node of a Docker Swarm: gives the orchestrator its engine, forwards its agents' connections to the
broker over TLS, and is the far end of their link probes. All it listens on asks for the orchestrator's certificate, but
the broker's port for the agents."""
