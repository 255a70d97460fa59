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


def page_path(argument: str, output: str | os.PathLike[str], name: str) -> Path:
    """Returns where a page goes: the file that was named, or `name` in the folder that was.

    Args:
        argument: what `output` is called in errors.
        output: a path ending in ``.html`` or ``.htm``, or a folder, which need not be there yet.
        name: of a page in a folder.

    Raises:
        ValueError: for another kind of file, which a page would replace.
    """
    path = Path(output)
    if path.is_dir() or not path.suffix:
        if path.is_file():
            raise ValueError(f"{argument}: expected a page ending in .html, or a folder, got the file {str(path)!r}")
        return path / name
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{argument}: expected a page ending in .html, or a folder, got {str(path)!r}")
    return path


def write_page(page: Path, text: str) -> Path:
    """Writes a page so that whoever looks sees the old one or the new, and returns its path."""
    page.parent.mkdir(parents=True, exist_ok=True)
    partial = page.with_name(page.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, page)
    return page
