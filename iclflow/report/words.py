"""Numbers, times and plain-text mathematics as a page shows them."""

import math
import re
from typing import Any

from markupsafe import Markup, escape


def duration(seconds: float) -> str:
    """A time in the unit a reader would use."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds < 86400:
        return f"{seconds / 3600:.2g} hours"
    return (
        f"{seconds / 86400:.2g} days" if seconds < 99.5 * 86400 else f"{seconds / 86400:.0f} days"
    )


def factor(ratio: float) -> str:
    """How many times faster, to two digits."""
    if ratio < 1:
        return f"{ratio:.2g}"
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def prose(text: str) -> Markup:
    """Text with its plain-text mathematics raised and lowered: x_q, L(M_m), P^(-1/2).

    Labels of our own equations, E2, lead to what these say.
    """
    found = re.sub(r"(?<!\w)(\w)_([A-Za-z0-9]+)", r"\1<sub>\2</sub>", str(escape(text)))
    found = re.sub(r"(?<![\w.])E\d(?![\w.])", r'<a href="#\g<0>">\g<0></a>', found)
    found = re.sub(r"\^\(([^()]*)\)", r"<sup>\1</sup>", found)
    found = re.sub(r"(?<![\w.])\d+(\.\d+)?e[+-]?\d+", lambda m: number(float(m[0])), found)
    return Markup(re.sub(r"(?<=[\^(>≈ ])-(?=\d)", "\N{MINUS SIGN}", found))


def sentence(text: str) -> str:
    """Text as a sentence of its own."""
    text = capital(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def capital(text: str) -> str:
    """Text with a large first letter, unless that is a symbol: w² stays w²."""
    word = re.match(r"(a|[a-z]{2,})(?=[\s,:;-])", text)
    return text[:1].upper() + text[1:] if word else text


def beside(value: Any, expected: Any) -> str:
    """A measured number, with the digits it takes to tell it from the expected one."""
    numbers = all(isinstance(v, int | float) for v in (value, expected))
    if not numbers or value == expected or expected == 0:
        return number(value)
    needed = 2 - math.floor(math.log10(abs(value / expected - 1)))
    return number(value, min(max(4, needed), 12))


def number(value: Any, digits: int = 4) -> str:
    """A number to four digits with a real exponent; words as they are."""
    if value is None:
        return "not a number"
    if isinstance(value, str):
        return value
    text = f"{value:.{digits}g}"
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text.replace("-", "\N{MINUS SIGN}")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    head = "" if mantissa == "1" else f"{mantissa} × ".replace("-", "\N{MINUS SIGN}")
    return f"{head}10{raised}"


FILTERS = (beside, capital, duration, number, factor, prose, sentence)
