"""The nodes inside a syntax tree, found once: all kernels that a factory makes share the trees of its file."""

import ast


def nodes_in(node):
    """A node and all nodes inside it, as a list in the order of `ast.walk`, which takes twice as long."""
    found = node.__dict__.get("nodes_in")
    if found is None:
        found = node.nodes_in = [node]
        for one in found:  # which grows
            for field in one._fields:
                value = getattr(one, field, None)
                if isinstance(value, ast.AST):
                    found.append(value)
                elif type(value) is list:
                    found += [inner for inner in value if isinstance(inner, ast.AST)]
    return found


def names_in(node):
    """All ast.Name inside a node, as a list."""
    found = node.__dict__.get("names_in")
    if found is None:
        found = node.names_in = [one for one in nodes_in(node) if isinstance(one, ast.Name)]
    return found
