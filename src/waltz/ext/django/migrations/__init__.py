"""The tables, as Django makes them."""
