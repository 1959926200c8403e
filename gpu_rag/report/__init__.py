"""Reports: a comparison as one HTML file without scripts or network, and the tables and lines of other commands."""
