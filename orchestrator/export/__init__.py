"""A run in the formats of other tools, made from its records alone. One file per format."""
