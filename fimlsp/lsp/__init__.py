"""LSP: the only room that imports pygls and lsprotocol."""
