"""Types, spaces, protocols, seeding and validation that all packages share. Imports nothing else of Coterie."""
