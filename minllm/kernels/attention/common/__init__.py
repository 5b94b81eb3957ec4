"""What all rungs of attention share: arguments, the paged cache, online softmax, which keys are visible, merging of states."""
