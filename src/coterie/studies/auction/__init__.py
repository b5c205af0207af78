"""Auctions: bidders held against equilibria, and their section of a report."""
