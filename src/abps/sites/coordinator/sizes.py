"""How large what a study's sites send is: weights that are shared, and the most bytes of a round."""

from __future__ import annotations

from typing import cast

from abps.methods.base import Method
from abps.methods.masked_rounds import masked_cost
from abps.methods.star import StarMethod, star_cost
from abps.models.layout import Layout
from abps.models.learners import layout_for
from abps.sites.consent.agreement import Agreement
from abps.wire.codecs import codec
from abps.wire.frames import frame_size


class Sizes:
    """The sizes of one study, by what its sites agreed on."""

    def __init__(self, agreement: Agreement, method: Method) -> None:
        self._method, self._width = method, agreement.width

    @property
    def layout(self) -> Layout:
        """Where every parameter sits."""
        return layout_for(self._method.training, self._width)

    @property
    def shared(self) -> int:
        """How many weights are shared."""
        return self.layout.shared(self._method.line.private_layers)

    @property
    def payload(self) -> int:
        """Bytes of a frame of them."""
        return frame_size(codec(self._method.line.codec), self.shared)

    def most_edges(self, members: int) -> int:
        """The most bytes that a site's ends of edges can take in a round."""
        if self._method.kind != "star":
            return (members - 1) * self.payload
        star = cast(StarMethod, self._method)
        up, down = star.uploads(self.layout), star.answers(self.layout)
        if star.privacy.secure:
            return 2 * masked_cost(star.line, 1, up, down).edge
        return 2 * star_cost(star.line, 1, up, down, star.noted).edge
