"""The program on a device."""

BELONGS_TO = "a package of Edgebed"  # `edgebed.entry` looks for it
