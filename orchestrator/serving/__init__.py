"""Trained exits on a standing fleet, answering real requests (`edgebed serve`)."""
