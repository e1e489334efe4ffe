"""A run over two nodes, which are two network namespaces of this machine."""
