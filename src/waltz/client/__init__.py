"""The library inside an application: submit, follow, apply; and a reader of ranges of the log."""
