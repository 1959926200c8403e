"""Reports, one HTML file each, without scripts or network: tables and plots of a comparison, an answer job or a
build."""
