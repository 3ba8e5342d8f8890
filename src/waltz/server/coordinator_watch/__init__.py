"""What a server hears of its coordinator."""
