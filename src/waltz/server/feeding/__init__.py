"""What clients are fed and what data they ask for: feeds, recent records, reads of old ones."""
