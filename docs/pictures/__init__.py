"""The pictures of the documentation: drawn from text and from the code, checked in as SVG.

`python -m docs.pictures` draws them all; `tests/test_pictures.py` compares.
"""
