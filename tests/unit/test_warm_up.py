"""What an agent does before its limits are set."""

from __future__ import annotations

import threading

import torch

from edge_agent.training import warm_up


def test_warm_up_leaves_the_random_state_and_starts_no_thread() -> None:
    state, threads, of_torch = torch.get_rng_state(), threading.active_count(), torch.get_num_threads()
    try:
        warm_up()
        assert torch.equal(torch.get_rng_state(), state)
        assert threading.active_count() == threads
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(of_torch)
