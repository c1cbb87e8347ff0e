"""What a board tells of itself: facts at join, and readings of frequency, heat, throttling and power.

One small class or function per source. Each takes the root of the file tree and a function that runs commands, so that
tests read recorded trees. What a board cannot tell is None, never 0. Only an agent that runs as a board sends any of
this: in a container the sensors are the host's, not the device's.
"""
