"""The live page: runs in a browser while they train."""
