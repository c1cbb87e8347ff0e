"""What a device does with a task, without I/O. The agent and the simulator both drive this code."""
