"""Reports: one HTML file each, no script, no network; tables and plots of a comparison, an answer job or a build."""
