"""Self-contained HTML pages made of the package's templates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fleet_gym._rounding import formatted, significant


def render_page(template: str, **context: Any) -> str:
    """Returns a page.

    Args:
        template: path of a template in the package's assets; it may include others.
        **context: what it shows; text is escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fleet_gym", "assets")
    # Templates are read as UTF-8 and everything they print is escaped, whatever the file is called.
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters.update(significant=significant, shown=formatted)
    return environment.get_template(template).render(**context)


def write_page(page: Path, text: str) -> Path:
    """Writes a page so that whoever looks sees the old one or the new, and returns its path."""
    page.parent.mkdir(parents=True, exist_ok=True)
    partial = page.with_name(page.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, page)
    return page
