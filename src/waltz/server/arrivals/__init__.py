"""TCP connections to a server whose peers have not said yet what they want."""
