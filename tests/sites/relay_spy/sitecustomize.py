"""Loaded by the relay's processes in a test: keeps every byte that the relay reads, after TLS; on a sign it
asks sites for whatever a relay with altered code may want of them."""

import os
import sys

#: What an altered relay asks in the middle of a round, whoever may answer it.
WANTED = (
    ("upload", 1),
    ("upload", 2),
    ("download", 1, []),
    ("begin", 10**9, []),
    ("begin", 1, []),
    ("join", [], 10**9),
    ("loss",),
    ("test_auroc",),
    ("state",),
    ("store",),
    ("trunk", 1),
    ("__dict__",),
    ("receive", "weights", b"x"),
    ("sum_masked", 1, 1),
    ("sum_total", 1),
    ("measure", 1),
    ("start", "upload", 1),
    ("start", "finish", 1),
)

if os.environ.get("RELAY_SPY"):
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager

    _log = open(f"{os.environ['RELAY_SPY']}.{os.getpid()}", "ab", buffering=0)  # noqa: SIM115, PTH123
    _process = ConnManager.process_frame  # where the frames of every kind of connection come by

    def _spy(self, connection, frame):
        _log.write(bytes(frame))
        _alter()
        return _process(self, connection, frame)

    ConnManager.process_frame = _spy

    def _alter():
        """Change the conductor's line once it is there."""
        app = sys.modules.get("abps.sites.flare.app")
        line = getattr(app, "_Line", None)
        if line is None or hasattr(line, "honest"):
            return
        line.honest = line.ask

        def ask(self, sites, what, *arguments, seconds):
            said = self.honest(sites, what, *arguments, seconds=seconds)
            if what == "start" and arguments[0] == "contribute" and _hostile():
                for wanted in WANTED:
                    loot, why = self.honest(sites, *wanted, seconds=5.0)
                    with open(f"{os.environ['RELAY_SPY']}-loot", "a") as file:  # noqa: PTH123
                        file.write(f"{arguments[0]} {wanted!r} {loot!r} {why!r}\n")
            return said

        line.ask = ask

    def _hostile():
        return os.path.exists(f"{os.environ['RELAY_SPY']}-hostile")  # noqa: PTH110
