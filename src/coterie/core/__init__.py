"""What crosses boundaries: types, spaces, protocols, seeding, validation. Imports nothing else of Coterie."""
