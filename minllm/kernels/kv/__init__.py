"""New keys and values enter the cache, at the slots that the cache manager chose."""
