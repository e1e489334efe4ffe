"""Numbers as a reader wants them: few digits, shares as percentages, durations in two units."""

import math


def number(value: float) -> str:
    """Three significant digits; an exponent only for very large and very small numbers."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value).replace("-", "−")
    if 1e-3 <= abs(value) < 1e5:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        written = f"{value:,.{digits}f}"
        return (written.rstrip("0").rstrip(".") if "." in written else written).replace("-", "−")
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "−")


def signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def percent(share: float) -> str:
    """A share as a whole percentage, but never 0 or 100 unless it is exact."""
    whole = f"{100 * share:.0f}"
    if whole in ("0", "100") and share not in (0, 1):
        return "< 0.1 %" if share < 0.0005 else "> 99.9 %" if share > 0.9995 else f"{100 * share:.1f} %"
    return f"{whole} %"


def duration(seconds: float) -> str:
    """Seconds in the two largest relevant units."""
    whole = round(seconds)
    if whole < 60:
        return f"{number(seconds)} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
