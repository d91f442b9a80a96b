"""Outside systems, one file each. Their packages are imported on first use."""
