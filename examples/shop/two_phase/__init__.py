"""The same shop without a log: three services and a coordinator that commits in two phases."""
