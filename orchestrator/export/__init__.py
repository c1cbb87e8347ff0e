"""Writes a run in the formats of other tools, from its records alone. One module per format."""
