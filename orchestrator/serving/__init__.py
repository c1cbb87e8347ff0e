"""Serves real requests with trained exits on a running fleet (`edgebed serve`)."""
