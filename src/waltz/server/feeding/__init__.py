"""The data that clients get: feeds, recent records, and reads of old ones."""
