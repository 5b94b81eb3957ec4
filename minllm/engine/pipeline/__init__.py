"""Three stages on threads of their own: tokenise, compute, detokenise."""
