"""Report: one HTML page for one run or several, section by section."""
