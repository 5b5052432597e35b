"""Configuration of the site: Sphinx reads the Markdown of this folder, and pages that `site_builder` generates."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "deplodock"
author = "The deplodock maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_builder"]
exclude_patterns = ["site_builder"]
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

autodoc_typehints = "none"  # the sections Args and Returns have the types that matter
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True
suppress_warnings = ["myst.header"]  # chapters number their exercises with headings of the third level
nitpick_ignore = [
    ("py:class", "deplodock.frontend.compilation.Compilation"),  # an attribute for the compiler's own tools
    ("py:class", "types.TracebackType"),  # of Python, whose documentation is not on this machine
]

html_theme = "furo"
html_title = "deplodock"
html_static_path = ["site_builder/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

linkcheck_timeout = 20
linkcheck_workers = 4
linkcheck_allowed_redirects = {r"https://.*": r"https://.*"}
