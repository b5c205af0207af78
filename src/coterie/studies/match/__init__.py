"""Play runs against each other in every pairing of seats."""
