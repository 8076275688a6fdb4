"""A codec of one's own, to copy: half precision floats.

python -c "from abps.checks import check_codec; from codec import HALF; print(check_codec(HALF))"
abps run --method fedavg --set codec=codec:HALF --out my-run
"""

from dataclasses import dataclass

import numpy as np

from abps.wire.codecs import NOTHING


@dataclass(frozen=True)
class Half:
    """Two bytes for every weight. number: 128 to 255, the same wherever the codec is used."""

    name: str = "half"
    number: int = 200

    def size(self, count):
        """Bytes that ``count`` weights take."""
        return 2 * count

    def encode(self, weights, key=0):
        """(count,) float32 to bytes; key: for codecs that round at random."""
        return weights.astype("<f2").tobytes()

    def decode(self, data, count):
        """Bytes to (count,) float32."""
        return np.frombuffer(data, dtype="<f2", count=count).astype(np.float32)

    def arrive(self, weights, keys=None, base=NOTHING, out=None):
        """(senders, count) as receivers see them, exactly what decoding each message would give.

        base: (count,) what both sides know; then differences from it travel.
        """
        travels = weights - base if len(base) else weights
        seen = travels.astype("<f2").astype(np.float32)
        out = np.empty(weights.shape, dtype=np.float32) if out is None else out
        out[:] = seen + base if len(base) else seen
        return out


HALF = Half()
