"""`waltz doctor`: checks of a machine and of nodes, each with its cause and its remedy."""
