"""The page: one HTML file with its script, its style and its data, which needs no network and runs nothing else.

Names from the model are in the data, compressed, and in the title, escaped: the browser never sees them as markup. The
policy of the page lets run one script and one style, by their hashes, and lets nothing be loaded or sent.
"""

from __future__ import annotations

import gzip
import html
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from hieronnx.files.shipped import read_shipped

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="hieronnx">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page shows a model with the help of JavaScript.</noscript>
<div id="app"></div>
<script type="application/gzip" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def make_page(data: Mapping[str, Any], title: str) -> str:
    """Make the page that shows this data."""
    script, style = read_shipped("view.js"), read_shipped("view.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    packed = gzip.compress(msgspec.json.encode(data), 9, mtime=0)
    return _PAGE.format(
        policy=html.escape(policy),
        title=html.escape(title),
        style=style,
        data=b64encode(packed).decode("ascii"),
        script=script,
    )


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}"
