"""Loaded by the relay's processes in a test: keeps every byte that the relay reads, after TLS."""

import os

if os.environ.get("RELAY_SPY"):
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager

    _log = open(f"{os.environ['RELAY_SPY']}.{os.getpid()}", "ab", buffering=0)  # noqa: SIM115, PTH123
    _process = ConnManager.process_frame  # where the frames of every kind of connection come by

    def _spy(self, connection, frame):
        _log.write(bytes(frame))
        return _process(self, connection, frame)

    ConnManager.process_frame = _spy
