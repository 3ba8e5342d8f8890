"""Sessions so far above the known ones that the coordinator has to know of them."""
