"""Web pages: native environments and policies as WebAssembly, drawn on a canvas."""

from fugu.web.module import PolicyFiles, build_module
from fugu.web.pages import write_gallery, write_page

__all__ = ["PolicyFiles", "build_module", "write_gallery", "write_page"]
