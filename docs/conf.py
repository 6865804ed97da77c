"""Configuration of the documentation site: ``make docs`` builds it with Sphinx, MyST and the theme Furo."""

import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "Yi-Rang MQ"
author = "Yi-Rang MQ contributors"
copyright = author
version = release = _PROJECT["version"]
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # anchors of headings as GitHub has them, so that links work in both places
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # JSON examples with "…"

html_theme = "furo"
html_title = f"Yi-Rang MQ {version}"
html_copy_source = False
html_show_sphinx = False

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    """Show diagrams in Mermaid as text: the site loads no script from outside."""
    app.add_lexer("mermaid", TextLexer)
