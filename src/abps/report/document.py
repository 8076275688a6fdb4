"""One self-contained page: a template, its style, inline SVG, no network."""

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from abps.report import tables

#: Where the policy goes once the page, and so the digests of its styles and scripts, are known.
_POLICY = "policy-of-this-page"


def page_templates(package: str) -> jinja2.Environment:
    """The templates of a package; everything is escaped, and a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **context: Any) -> str:
    """Fill a template of this package; everything but drawings is escaped. The page allows its own style and
    script, by their digests, and nothing else: no network, no frame, no script in an attribute."""
    environment = page_templates("abps.report")
    filters: dict[str, Callable[..., str]] = {
        "thousands": lambda value: "" if value is None else f"{value:,}",
        "percent": lambda value: f"{100 * value:.1f}",
        "anchor": anchor,
        "code": code,
        "p": p_value,
        "figures": significant,
        "number": tables.number,
        "signed": tables.signed,
        "span": tables.span,
        "in_ten": tables.in_ten,
        "volume": tables.volume,
    }
    environment.filters |= filters
    html = environment.get_template(template).render(policy=_POLICY, **context)
    return html.replace(_POLICY, policy(html), 1)


def policy(html: str) -> str:
    allowed = ["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for kind in ("style", "script"):
        found = re.findall(rf"<{kind}>(.*?)</{kind}>", html, flags=re.S)
        if found:
            allowed.append(" ".join([f"{kind}-src", *map(_digest, found)]))
    return "; ".join(allowed)


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def anchor(name: str, number: int = 1) -> str:
    """The name of a hospital as it stands after ``report.html#``; with the number of a later federation.

    >>> anchor("CCU/1"), anchor("CCU/1", 2)
    ('CCU%2F1', '2:CCU%2F1')
    """
    return (f"{number}:" if number > 1 else "") + quote(name, safe="")


def code(text: str) -> Markup:
    """Text in which what stands between backticks is a command.

    >>> str(code("run `a < b` now"))
    'run <code>a &lt; b</code> now'
    """
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def significant(value: float, digits: int = 3) -> str:
    return "–" if value != value else f"{value:.{digits}g}"


def p_value(p: float) -> str:
    """A p-value as papers write it."""
    if p != p:
        return "–"
    if p >= 0.001:
        return f"{p:.3f}"
    if p == 0:
        return "< 1e-300"
    mantissa, exponent = f"{p:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
