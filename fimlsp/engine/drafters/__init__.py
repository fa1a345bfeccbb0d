"""Draft sources: each guesses the next tokens, none of them decides whether that pays."""
