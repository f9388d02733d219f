"""What n-gram drafters do for each token: finding where a text's end was before, and what followed there."""
