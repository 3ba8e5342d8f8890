"""The library inside an application: submit, follow, apply."""
