"""What servers are asked about themselves."""
