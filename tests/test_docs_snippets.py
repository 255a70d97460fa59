"""Every Python block of README and docs runs; the blocks of a page one after the other, as a reader would paste."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w-]*)")
# Their scripts need the trainers, and run with them in tests/integration.
TRAINER_PAGES = [page for page in sorted((ROOT / "docs/trainers").glob("*.md")) if page.name != "index.md"]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page not in TRAINER_PAGES]


def python_of(markdown: str) -> str:
    """The Python blocks of a page on their own lines, so that a traceback names lines of the page."""
    code: list[str] = []
    closing: str | None = None
    indent = ""
    is_python = False
    for line in markdown.splitlines():
        fence = FENCE.match(line)
        if closing is None and fence:
            closing, indent = fence["fence"], fence["indent"]
            is_python = fence["language"] in ("python", "py")
            code.append("")
        elif closing is not None and line.strip() == closing:
            closing = None
            code.append("")
        else:
            code.append(line.removeprefix(indent) if closing is not None and is_python else "")
    assert closing is None, "a code block is not closed"
    return "\n".join(code) + "\n"


SCRIPTS = {page.relative_to(ROOT): code for page in PAGES if (code := python_of(page.read_text())).strip()}


def run_script(page: Path, code: str, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}_page.py"  # no name that hides a module: docs/trainers/torchrl.md
    script.write_text(code)
    environment = {**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:__main__"}
    result = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:].replace(f'File "{script}"', f'File "{page}"')


@pytest.mark.parametrize("page", SCRIPTS, ids=str)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    run_script(page, SCRIPTS[page], tmp_path)


def test_blocks_keep_their_lines_and_lose_their_indentation() -> None:
    page = "text\n\n    ```python\n    a = 1\n    if a:\n        b = 2\n    ```\n```text\nno\n```\n~~~py\nc = a\n~~~\n"
    assert python_of(page).splitlines() == ["", "", "", "a = 1", "if a:", "    b = 2", "", "", "", "", "", "c = a", ""]


def test_pages_with_snippets_were_found() -> None:
    assert {Path("README.md"), Path("docs/quickstart.md"), Path("docs/environment.md")} <= set(SCRIPTS)
    assert {page.stem for page in TRAINER_PAGES} == {"pettingzoo", "rllib", "sb3", "torchrl"}
