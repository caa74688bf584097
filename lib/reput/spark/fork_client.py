"""Stands in for a Python that is to start: has :mod:`reput.spark.fork_server` fork one in its place.

``python -I -S fork_client.py ARGUMENT...``, started with what Python is to be given. It lends its own
standard streams, environment and directory to the forked process, and ends as that ends. When this process is
ended, the other one is. Where no server answers, or it can't fork, this becomes the Python that was asked
for.

It loads nothing but what Python has built in: that is what makes it start in some milliseconds.
"""

import _socket
import array
import os
import sys


def main() -> None:
    """Ask for a fork."""
    words = sys.argv[1:]
    path = os.environ.pop("REPUT_FORK_SERVER")
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    environment = (b"=".join(pair) for pair in os.environb.items())
    directory = os.getcwdb()  # noqa: PTH109 - pathlib takes longer to load than all the rest
    fields = [directory, str(len(words)).encode(), *map(os.fsencode, words), *environment]
    request = b"\0".join(fields)
    try:
        server.connect(path)
        streams = array.array("i", [0, 1, 2])
        server.sendmsg(
            [len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams.tobytes())]
        )
        server.sendall(request)
        forked = server.recv(1)
    except OSError:
        forked = b""
    if not forked:
        os.execv(os.environ["REPUT_PYTHON"], [os.environ["REPUT_PYTHON"], *words])
    # The streams are the other process's now; who reads them waits for its end, not for this one's.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    code, number = server.recv(2) or (0, 9)  # the server was killed: how the other process ended isn't known
    if number:
        os.kill(os.getpid(), number)
        code = 128 + number  # it is one that Python ignores
    os._exit(code)


main()
