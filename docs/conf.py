# ruff: noqa: INP001 - no package
"""The documentation as a site: ``tox -e docs`` builds it, and every warning is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import celery_throttle

if TYPE_CHECKING:
    from sphinx.application import Sphinx

EXTENSIONS = Path(__file__).parent / "_ext"
sys.path.insert(0, str(EXTENSIONS))

project = "celery_throttle"
author = "celery_throttle contributors"
copyright = "celery_throttle contributors, BSD-3-Clause"  # noqa: A001 - Sphinx gives it this name
release = version = celery_throttle.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "for_readers",
    "searched",
]
exclude_patterns = ["_build", "_ext"]
#: `LeaseLost` is the name of an error and of a signal's event.
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

#: Of a Django project that mounts the page; they cannot be imported without its settings.
autodoc_mock_imports = ["asgiref", "django"]
#: A private module in front of a name would invite imports from there.
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"celery_throttle {release.partition('+')[0]}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = html_logo = "_static/gate.svg"
html_search_scorer = str(EXTENSIONS / "scorer.js")
html_extra_path = ["llms.txt"]
html_show_sourcelink = False

linkcheck_anchors = False
linkcheck_timeout = 20

PACKAGE = Path(celery_throttle.__file__).parent


def name_modules(_: Sphinx, page: str, source: list[str]) -> None:
    """Write the module before each `{Name}` of a page of the API, since what methods return has no public one."""
    if page.startswith("reference/api"):
        source[0] = re.sub(r"{(\w+)}", lambda name: f"{_module_of(name[1])}.{name[1]}", source[0])


def _module_of(name: str) -> str:
    declares = re.compile(rf"^class {name}\b", re.MULTILINE)
    sources = (each for each in PACKAGE.rglob("*.py") if "cli" not in each.parts)  # what commands have is private
    (path,) = (each for each in sources if declares.search(each.read_text()))
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_modules)
