"""Texts that try to get out of a page, of a line, or of a terminal."""

from __future__ import annotations

from typing import Final

MARKUP: Final = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "{{ 7 * 7 }}{% raw %}",
    "]]><!--<script>alert(1)//-->",
    "</textarea><script>alert(1)</script>",
    "\u2028</script><script>alert(1)</script>",
    "<a href='//elsewhere.example'>x</a>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\ufdd0rate\ufdd1",
)
"""Texts of which HTML may be made, or templates, or our own marks."""

INVISIBLE: Final = (
    "\u202egnp.exe",
    "\u2066hidden\u2069",
    "zero\u200bwidth",
    "\x1b[2J\x1b[31mred",
    "\x9b31m",
    "line\r\nbreak\nX-Header: 1",
    "null\x00byte",
    "\ud800lone",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f" * 3,
    "\U000e0041tag",
    "\ufeffmark",
)
"""Texts with characters that move, turn or hide what stands around them."""

LONG: Final = "x" * 1_000_000
ALL: Final = (*MARKUP, *INVISIBLE, LONG)
