"""Has the process of `tests/warm.py` run a Python program with the files, folder and environment of this process, and
ends as the program ends: `warm_client.py SOCKET ARGUMENTS…`."""

import os
import signal
import socket
import sys


def main() -> int:
    place, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [b"3"], [0, 1, 2])
        server.sendall(repr((arguments, os.getcwd(), dict(os.environ))).encode())
        server.shutdown(socket.SHUT_WR)
        code = int(server.recv(16))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
