"""What the plugin shows: `reading` is what is known and to whom it is told, `pages` and `api` are the addresses."""
