"""Plans the rounds, trains the server's part, and records."""

BELONGS_TO = "a package of Edgebed"  # `edgebed.entry` looks for it
