"""Limits of a device, and how a kernel is made to hold them: for the backends, and for boards that limit themselves."""
