"""Attention of the nodes of a draft tree: a row sees the context before the tree, its ancestors and itself."""
