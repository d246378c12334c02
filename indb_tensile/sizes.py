"""Formats sizes of memory for people."""


def size(size_bytes: int) -> str:
    """Format a size in units of 1024 bytes, with PostgreSQL's names of the units."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GB"


def compared(size_bytes: int, *others_bytes: int) -> tuple[str, ...]:
    """Format sizes that one sentence compares.

    All sizes are in bytes if the first one, rounded to a larger unit, reads the same as another, different size.
    """
    texts = tuple(size(each) for each in (size_bytes, *others_bytes))
    alike = any(text == texts[0] and each != size_bytes for text, each in zip(texts[1:], others_bytes, strict=True))
    return tuple(f"{each} B" for each in (size_bytes, *others_bytes)) if alike else texts
