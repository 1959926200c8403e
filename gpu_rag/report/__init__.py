"""Reports, one HTML file each, without scripts or network, of a comparison, an answer job or a build."""
