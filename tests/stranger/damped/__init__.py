"""Damped averaging, a stranger's method: the server goes a share of the way to FedAvg's average."""

from damped.method import Damped

__all__ = ["Damped"]
