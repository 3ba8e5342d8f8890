"""The `waltz` command: shows and launches; decides nothing."""
