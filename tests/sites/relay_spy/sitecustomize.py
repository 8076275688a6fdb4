"""Loaded by the relay's processes in a test: keeps every byte that the relay reads, after TLS."""

import os

if os.environ.get("RELAY_SPY"):
    from nvflare.fuel.f3 import connection

    _log = open(f"{os.environ['RELAY_SPY']}.{os.getpid()}", "ab", buffering=0)  # noqa: SIM115, PTH123
    _process = connection.Connection.process_frame

    def _spy(self, frame):
        _log.write(bytes(frame))
        return _process(self, frame)

    connection.Connection.process_frame = _spy
