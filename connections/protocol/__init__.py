"""The frames on the wire, and errors in the protocol's terms."""
